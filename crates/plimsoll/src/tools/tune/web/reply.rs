//! A reply's body: sent piece by piece, so that it's known when the last one has been taken.

use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Handed to the socket at once.
const PIECE_BYTES: usize = 64 << 10;

/// See the module's documentation.
pub struct Reply {
    left: Bytes,
    /// Called when the body is over, or given up.
    over: Option<Box<dyn FnOnce() + Send>>,
}

impl Reply {
    /// All of `bytes`; `over` is called when they are taken.
    pub fn new(bytes: Bytes, over: Option<Box<dyn FnOnce() + Send>>) -> Reply {
        Reply { left: bytes, over }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(over) = self.over.take() {
            over();
        }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let n = self.left.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(n)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}
