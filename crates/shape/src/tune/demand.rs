//! Demand: the number of transactions that would be in the database if none were held. It is the greatest number seen there or
//! waiting. Open connections don't show it, as most of a pool's are silent (AP-A5).

/// Windows that are remembered.
const WINDOWS: usize = 16;

/// The greatest demand of the last windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    of: [u32; WINDOWS],
    at: usize,
    now: u32,
}

impl Demand {
    /// Takes the number of transactions in the database or waiting at a look.
    pub fn look(&mut self, active: u32) {
        self.now = self.now.max(active);
    }

    /// A window ends. The greatest of it and those before.
    pub fn window(&mut self) -> u32 {
        self.of[self.at] = std::mem::take(&mut self.now);
        self.at = (self.at + 1) % WINDOWS;
        self.of.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut d = Demand::default();
        [3, 9, 4].into_iter().for_each(|n| d.look(n));
        assert_eq!(d.window(), 9);
        for _ in 0..WINDOWS - 1 {
            d.look(2);
            assert_eq!(d.window(), 9);
        }
        d.look(2);
        assert_eq!(d.window(), 2);
    }
}
