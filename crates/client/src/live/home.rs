//! The process in which something was opened. A child that was forked from it has copies of the memory, but none of the threads, and shares
//! the sockets: whatever it sent or closed there would be its parent's.

/// The reason why nothing works in a child.
pub const FORKED: &str = "it was opened by another process, from which this one was forked: open it in this process";

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    process: u32,
}

impl Home {
    /// The calling process.
    pub fn here() -> Home {
        Home { process: std::process::id() }
    }

    /// Returns whether this is another process.
    pub fn is_left(self) -> bool {
        std::process::id() != self.process
    }

    /// Another process.
    #[cfg(test)]
    pub fn elsewhere() -> Home {
        Home { process: 0 }
    }
}
