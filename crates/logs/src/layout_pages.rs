//! The two copies of the layout page as a start finds them, and the layout that they say.

use crate::format::{VERSION, decode_layout, unknown_version};
use crate::layout::{BadLayout, LAYOUTS_AT, Layout};

/// The copies that were read so far, in the order of [`LAYOUTS_AT`].
#[derive(Default)]
pub(crate) struct LayoutPages {
    copies: Vec<Result<(Layout, u32), BadLayout>>,
    /// The words for a copy of an unknown version.
    unknown: Option<String>,
}

/// The layout in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chosen {
    pub layout: Layout,
    /// Format version of what is on the device.
    pub version: u32,
    /// A copy is damaged, so both are to be written again.
    pub is_damaged: bool,
    /// The copy to write first: one that doesn't say the layout.
    pub write_first: usize,
}

impl LayoutPages {
    /// Adds the next copy; `None` if it can't be read.
    pub fn add(&mut self, page: Option<&[u8]>) {
        let unreadable = || BadLayout("the logs' layout page can't be read: replace the device".into());
        self.unknown = self.unknown.take().or_else(|| page.and_then(unknown_version));
        self.copies.push(page.ok_or_else(unreadable).and_then(decode_layout));
    }

    /// Chooses the layout, once both copies were added. A page of version 1 beside one of version 2 is from before the conversion.
    ///
    /// # Errors
    /// If neither is good, or the good ones differ. If either is of an unknown version, whatever the other one is: a program that knows
    /// it was converting the device.
    pub fn choose(&self) -> Result<Chosen, String> {
        if let Some(what) = &self.unknown {
            return Err(what.clone());
        }
        let good = || self.copies.iter().flatten();
        let Some(version) = good().map(|(_, version)| *version).max() else {
            let errors = || self.copies.iter().filter_map(|copy| copy.as_ref().err());
            let worst = errors().find(|e| !e.0.contains("has no logs")).or_else(|| errors().next());
            return Err(worst.expect("both were added, and neither is good").0.clone());
        };
        let mut of_newest = good().filter(|(_, v)| *v == version).map(|(layout, _)| *layout);
        let layout = of_newest.next().expect("one has the newest version");
        let others: Vec<Layout> = of_newest.collect();
        if others.iter().any(|other| *other != layout) {
            return Err("the logs' two layout pages differ: restore the device from a copy".into());
        }
        let says_it = |copy: &Result<(Layout, u32), BadLayout>| copy.as_ref().is_ok_and(|(_, v)| *v == version);
        Ok(Chosen {
            layout,
            version,
            is_damaged: version == VERSION && others.len() + 1 < LAYOUTS_AT.len(),
            write_first: self.copies.iter().position(|copy| !says_it(copy)).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::encode_layout;
    use crate::layout::Shape;

    #[test]
    fn one_good_page_is_enough_and_one_of_a_later_version_is_too_much() {
        let shape = Shape { group_bytes: 256 << 10, log_bytes: 64 << 10, extents_max: 64 };
        let layout = |salt| Layout::new(4 << 20, 512, shape, salt).unwrap();
        let chosen = |pages: [Option<&[u8]>; 2]| {
            let mut found = LayoutPages::default();
            pages.into_iter().for_each(|page| found.add(page));
            found.choose()
        };
        let (good, other) = (encode_layout(&layout(1)), encode_layout(&layout(2)));
        let whole = Chosen { layout: layout(1), version: VERSION, is_damaged: false, write_first: 0 };
        assert_eq!(chosen([Some(&good), Some(&good)]), Ok(whole));
        let mut torn = good.clone();
        torn[20] ^= 1;
        for (bad, write_first) in [([None, Some(good.as_slice())], 0), ([Some(&good), Some(torn.as_slice())], 1)] {
            assert_eq!(chosen(bad), Ok(Chosen { is_damaged: true, write_first, ..whole }));
        }
        let mut later = good.clone();
        later[8] = 9;
        let sum = xxhash_rust::xxh3::xxh3_64(&later[..56]).to_le_bytes();
        later[56..64].copy_from_slice(&sum);
        for pages in
            [[Some(good.as_slice()), Some(later.as_slice())], [Some(&later), Some(&good)], [Some(&later), None]]
        {
            assert!(chosen(pages).unwrap_err().contains("of version 9"));
        }
        assert!(chosen([Some(&good), Some(&other)]).unwrap_err().contains("differ"));
        assert!(chosen([Some(&[0; 4096]), Some(&torn)]).unwrap_err().contains("torn or corrupt"));
        assert!(chosen([None, None]).unwrap_err().contains("can't be read"));
    }
}
