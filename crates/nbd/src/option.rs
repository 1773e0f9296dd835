//! The data of the handshake's options, taken apart.

use crate::cursor::Cursor;
use crate::wire::{InfoKind, MetaContext, MetaContexts, STRING_BYTES_MAX};

/// Reason why an option's data was not understood; the text goes to the client.
pub(crate) type Malformed = &'static str;

/// A string as the protocol has them: UTF-8, without NUL, at most [`STRING_BYTES_MAX`] long.
pub(crate) fn string(bytes: &[u8]) -> Result<&str, Malformed> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err("a string is longer than 4096 bytes");
    }
    let text = str::from_utf8(bytes).map_err(|_| "a string is not UTF-8")?;
    if text.contains('\0') { Err("a string contains NUL") } else { Ok(text) }
}

fn counted_string<'a>(cursor: &mut Cursor<'a>) -> Result<&'a str, Malformed> {
    let length = cursor.u32().ok_or("the data end before a string's length")?;
    // Before the bytes are looked for, so that the reason given is the same however long the data are.
    if length as usize > STRING_BYTES_MAX {
        return Err("a string is longer than 4096 bytes");
    }
    string(cursor.bytes(length as usize).ok_or("a string is longer than the data")?)
}

/// Information that INFO or GO asks for beside the export's size and flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InfoWanted {
    pub(crate) name: bool,
    pub(crate) description: bool,
    pub(crate) block_sizes: bool,
}

/// The data of INFO and GO: the export's name and what else is wanted. Unknown wishes are ignored.
pub(crate) fn info_or_go(data: &[u8]) -> Result<(&str, InfoWanted), Malformed> {
    let mut cursor = Cursor::new(data);
    let name = counted_string(&mut cursor)?;
    let count = cursor.u16().ok_or("the data end before the number of information requests")?;
    let mut wanted = InfoWanted::default();
    for _ in 0..count {
        let kind = cursor.u16().ok_or("the data end before the last information request")?;
        match InfoKind::from_wire(kind) {
            Some(InfoKind::Name) => wanted.name = true,
            Some(InfoKind::Description) => wanted.description = true,
            Some(InfoKind::BlockSize) => wanted.block_sizes = true,
            Some(InfoKind::Export) | None => {}
        }
    }
    if cursor.is_empty() { Ok((name, wanted)) } else { Err("the data go on after the last information request") }
}

/// Purpose of queries, to list contexts or to choose them: the rules for wildcards differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaPurpose {
    List,
    Set,
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT: the export's name and the known contexts that the
/// queries match. Whether the export offers them is not asked here.
pub(crate) fn meta_context(data: &[u8], purpose: MetaPurpose) -> Result<(&str, MetaContexts), Malformed> {
    let mut cursor = Cursor::new(data);
    let name = counted_string(&mut cursor)?;
    let count = cursor.u32().ok_or("the data end before the number of queries")?;
    let mut matched = MetaContexts::EMPTY;
    for _ in 0..count {
        let query = counted_string(&mut cursor)?;
        if !query.contains(':') {
            return Err("a metadata query has no colon after its namespace");
        }
        for context in MetaContext::ALL {
            let wildcard = purpose == MetaPurpose::List && query == context.namespace();
            if wildcard || query == context.name() {
                matched = matched.with(context);
            }
        }
    }
    if !cursor.is_empty() {
        return Err("the data go on after the last query");
    }
    if count == 0 && purpose == MetaPurpose::List {
        matched = MetaContext::ALL.into_iter().fold(matched, MetaContexts::with);
    }
    Ok((name, matched))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_requests_are_read_and_unknown_ones_ignored() {
        let data = b"\0\0\0\x03web\0\x03\0\x03\0\x63\0\x01";
        let wanted = InfoWanted { name: true, description: false, block_sizes: true };
        assert_eq!(info_or_go(data), Ok(("web", wanted)));
        assert_eq!(info_or_go(b"\0\0\0\0\0\0"), Ok(("", InfoWanted::default())));
    }

    #[test]
    fn every_cut_and_every_addition_is_malformed() {
        let info = b"\0\0\0\x03web\0\x01\0\x03";
        let meta = b"\0\0\0\x03web\0\0\0\x01\0\0\0\x05base:";
        for end in 0..info.len() {
            assert!(info_or_go(&info[..end]).is_err(), "cut at {end}");
        }
        for end in 0..meta.len() {
            assert!(meta_context(&meta[..end], MetaPurpose::List).is_err(), "cut at {end}");
        }
        assert!(info_or_go(&[&info[..], b"\0"].concat()).is_err());
        assert!(meta_context(&[&meta[..], b"\0"].concat(), MetaPurpose::List).is_err());
        assert!(info_or_go(b"\xff\xff\xff\xffweb").is_err());
        assert!(meta_context(b"\0\0\0\0\xff\xff\xff\xff", MetaPurpose::Set).is_err());
    }

    #[test]
    fn strings_follow_the_specification() {
        assert_eq!(string(b"web?deadline=20ms"), Ok("web?deadline=20ms"));
        assert!(string(&[0xff]).is_err());
        assert!(string(b"we\0b").is_err());
        assert!(string(&[b'a'; 4096]).is_ok());
        assert!(string(&[b'a'; 4097]).is_err());
    }

    #[test]
    fn wildcards_list_and_do_not_choose() {
        let query =
            |text: &str| [b"\0\0\0\0\0\0\0\x01", &(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
        let matched = |text: &str, purpose| {
            meta_context(&query(text), purpose)
                .map(|(_, matched)| matched.iter().map(MetaContext::name).collect::<Vec<_>>())
        };
        use MetaPurpose::{List, Set};
        assert_eq!(matched("base:", List), Ok(vec!["base:allocation"]));
        assert_eq!(matched("base:", Set), Ok(vec![]));
        assert_eq!(matched("base:allocation", Set), Ok(vec!["base:allocation"]));
        assert_eq!(matched("x-plimsoll:", List), Ok(vec!["x-plimsoll:promise", "x-plimsoll:written"]));
        assert_eq!(matched("x-plimsoll:promise", Set), Ok(vec!["x-plimsoll:promise"]));
        assert_eq!(matched("base:unknown", Set), Ok(vec![]), "unknown leaves are ignored");
        assert_eq!(matched("qemu:dirty-bitmap:b0", Set), Ok(vec![]), "and so are unknown namespaces");
        assert!(matched("base", List).is_err());
        assert_eq!(meta_context(b"\0\0\0\0\0\0\0\0", Set), Ok(("", MetaContexts::EMPTY)));
        let (_, all) = meta_context(b"\0\0\0\0\0\0\0\0", List).expect("no query asks for all");
        assert_eq!(all.iter().count(), 3);
    }
}
