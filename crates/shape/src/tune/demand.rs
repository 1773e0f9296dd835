//! How many could be inside if nothing were held: the greatest number seen that were inside or waited. Connections that are open say nothing
//! of that, as most of a pool's are silent (AP-A5).

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
    /// At a look so many are inside or wait.
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
