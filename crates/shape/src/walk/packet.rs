//! Length-prefixed packets cut at any byte: keeps the first bytes of each and skips the rest.

/// Bytes of a packet's body that are kept.
pub const HEAD_BYTES: usize = 160;

/// How long the header is, and the body after it.
pub trait Framing {
    /// Bytes of the header, at most 16.
    const HEADER: usize;
    /// Bytes that follow this header; `None` if that is no header.
    fn body(header: &[u8]) -> Option<u64>;
}

/// Where in a stream of packets one is.
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

    /// A header made no sense.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// The part of `bytes` up to and with the next beginning of a packet, which is given to `f`. What remains is returned;
    /// `None` once all are taken.
    pub fn next<'b, F: Framing>(&mut self, mut bytes: &'b [u8], f: &mut dyn FnMut(Start<'_>)) -> Option<&'b [u8]> {
        while !self.lost {
            let have = usize::from(self.header_len);
            if have < F::HEADER {
                let take = bytes.len().min(F::HEADER - have);
                self.header[have..have + take].copy_from_slice(&bytes[..take]);
                self.header_len += take as u8;
                bytes = &bytes[take..];
                if usize::from(self.header_len) < F::HEADER {
                    return None;
                }
                match F::body(&self.header[..F::HEADER]) {
                    Some(len) => self.left = len,
                    None => {
                        self.lost = true;
                        return None;
                    }
                }
                (self.head_len, self.told) = (0, false);
            }
            let kept = usize::from(self.head_len);
            let take = (bytes.len() as u64).min(self.left) as usize;
            if !self.told && kept == 0 && take as u64 == self.left {
                // All of it, as nearly always: looked at where it lies.
                let start =
                    Start { header: &self.header[..F::HEADER], len: self.left, head: &bytes[..take.min(HEAD_BYTES)] };
                f(start);
                (self.left, self.header_len) = (0, 0);
                return Some(&bytes[take..]);
            }
            if !self.told {
                let keep = take.min(HEAD_BYTES - kept);
                self.head[kept..kept + keep].copy_from_slice(&bytes[..keep]);
                self.head_len += keep as u8;
                let full = usize::from(self.head_len) == HEAD_BYTES || keep as u64 == self.left;
                bytes = &bytes[keep..];
                self.left -= keep as u64;
                if !full {
                    return None;
                }
                self.told = true;
                let len = u64::from(self.head_len) + self.left;
                let head = &self.head[..usize::from(self.head_len)];
                f(Start { header: &self.header[..F::HEADER], len, head });
                if self.left == 0 {
                    self.header_len = 0;
                }
                return Some(bytes);
            }
            bytes = &bytes[take..];
            self.left -= take as u64;
            if self.left > 0 {
                return None;
            }
            self.header_len = 0;
        }
        None
    }
}
