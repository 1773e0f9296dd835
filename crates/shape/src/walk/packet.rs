//! Length-prefixed packets cut at any byte: keeps the first bytes of each and skips the rest.

/// Bytes of a packet's body that are kept.
pub const HEAD_BYTES: usize = 160;

/// Lengths of the header and of the body after it.
pub trait Framing {
    /// Bytes of the header, at most 16.
    const HEADER: usize;
    /// If true, the body's bytes are shown too, all of them.
    const BODY: bool = false;
    /// Bytes that follow this header; `None` if that is no header.
    fn body(header: &[u8]) -> Option<u64>;
}

/// Position in a stream of packets.
#[derive(Clone, Copy, Debug)]
pub struct Packets {
    header: [u8; 16],
    header_len: u8,
    head: [u8; HEAD_BYTES],
    head_len: u8,
    /// Bytes of the body still to come.
    left: u64,
    told: bool,
    lost: bool,
}

/// The beginning of a packet: its header, its body's length and first bytes.
pub struct Start<'a> {
    /// Header.
    pub header: &'a [u8],
    /// Length of the body.
    pub len: u64,
    /// Its first bytes: all, or [`HEAD_BYTES`].
    pub head: &'a [u8],
}

/// Events of a packet, in this order.
pub enum Event<'a> {
    /// Its beginning.
    Start(Start<'a>),
    /// Pieces of its body, from the first byte on, where the framing asks for them.
    Body(&'a [u8]),
    /// Its last byte has come.
    End,
}

impl Packets {
    /// Between packets.
    pub const NEW: Packets = Packets {
        header: [0; 16],
        header_len: 0,
        head: [0; HEAD_BYTES],
        head_len: 0,
        left: 0,
        told: false,
        lost: false,
    };

    /// Nothing of a packet has come.
    pub fn between(&self) -> bool {
        self.header_len == 0
    }

    /// Bytes of the present packet's body that have not come yet.
    pub fn missing(&self) -> u64 {
        self.left
    }

    /// A header made no sense.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Takes the part of `bytes` up to and with the next beginning or end of a packet, and reports it to `f`. Returns the
    /// remaining bytes; `None` once all are taken.
    pub fn next<'b, F: Framing>(&mut self, bytes: &'b [u8], f: &mut dyn FnMut(Event<'_>)) -> Option<&'b [u8]> {
        if self.lost {
            return None;
        }
        let bytes = if self.has_header::<F>() { bytes } else { self.take_header::<F>(bytes)? };
        let take = (bytes.len() as u64).min(self.left) as usize;
        let (mine, rest) = bytes.split_at(take);
        if self.told {
            if F::BODY && take > 0 {
                f(Event::Body(mine));
            }
            self.left -= take as u64;
            return self.at_end(f).then_some(rest);
        }
        if self.head_len == 0 && take as u64 == self.left {
            // All of it, as nearly always: looked at where it lies.
            let head = &mine[..take.min(HEAD_BYTES)];
            f(Event::Start(Start { header: &self.header[..F::HEADER], len: self.left, head }));
            if F::BODY {
                f(Event::Body(mine));
            }
            self.left = 0;
            self.at_end(f);
            return Some(rest);
        }
        let kept = usize::from(self.head_len);
        let keep = take.min(HEAD_BYTES - kept);
        self.head[kept..kept + keep].copy_from_slice(&bytes[..keep]);
        self.head_len += keep as u8;
        self.left -= keep as u64;
        if usize::from(self.head_len) < HEAD_BYTES && self.left > 0 {
            return None;
        }
        self.told = true;
        let head = &self.head[..usize::from(self.head_len)];
        f(Event::Start(Start { header: &self.header[..F::HEADER], len: head.len() as u64 + self.left, head }));
        if F::BODY {
            f(Event::Body(head));
        }
        self.at_end(f);
        Some(&bytes[keep..])
    }

    fn has_header<F: Framing>(&self) -> bool {
        usize::from(self.header_len) == F::HEADER
    }

    /// Takes what is missing of the header; `None` if that isn't all there, or makes no sense.
    fn take_header<'b, F: Framing>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let have = usize::from(self.header_len);
        let take = bytes.len().min(F::HEADER.checked_sub(have)?);
        self.header[have..have + take].copy_from_slice(&bytes[..take]);
        self.header_len += take as u8;
        if !self.has_header::<F>() {
            return None;
        }
        let body = F::body(&self.header[..F::HEADER]);
        self.lost = body.is_none();
        (self.left, self.head_len, self.told) = (body?, 0, false);
        Some(&bytes[take..])
    }

    /// Returns true, and reports it, if all of the packet has come.
    fn at_end(&mut self, f: &mut dyn FnMut(Event<'_>)) -> bool {
        let ended = self.left == 0;
        if ended {
            (self.header_len, self.told) = (0, false);
            f(Event::End);
        }
        ended
    }
}
