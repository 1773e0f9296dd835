//! The ζ loop (AppleS §4.3.2, AP-M10, AP-M11): the most sequentiality that fairness and stable latencies allow.

/// Bounds and limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZetaConfig {
    /// Highest unfairness, in thousandths.
    pub unfairness_max_milli: u64,
    /// Highest latency variability, in thousandths; none if unknown.
    pub variability_max_milli: Option<u64>,
    /// Highest ζ.
    pub zeta_max: u32,
}

impl Default for ZetaConfig {
    fn default() -> ZetaConfig {
        // 10 % is the paper's target of Fig. 11; its ζ goes up to 128 per user.
        ZetaConfig { unfairness_max_milli: 100, variability_max_milli: None, zeta_max: 128 }
    }
}

/// Measurements of a window, in thousandths; `None` where it had too little data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZetaWindow {
    /// U_f.
    pub unfairness_milli: Option<u64>,
    /// V_l.
    pub variability_milli: Option<u64>,
    /// The worst p99.9 of users with an objective, as a part of it: turns of many transactions are long waits for the others.
    pub tail_milli: Option<u64>,
}

impl ZetaWindow {
    /// Window without any measurement.
    pub const NONE: ZetaWindow = ZetaWindow { unfairness_milli: None, variability_milli: None, tail_milli: None };
}

/// Windows in a row that must say the same before ζ moves.
const WINDOWS_AGREE: u32 = 2;
/// Each increase that broke a bound doubles how many calm windows the next one needs, up to this: or ζ swings between what is too little and
/// too much for ever, and half of the time a bound is broken.
const CALM_NEEDED_MAX: u32 = 64;

/// The loop's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeta {
    config: ZetaConfig,
    zeta: u32,
    calm: u32,
    calm_needed: u32,
    broken: u32,
    /// The step is doubling until a bound was broken once, then one (AP-A1: the paper names no step).
    cautious: bool,
}

impl Zeta {
    /// Begins at `zeta`.
    pub fn new(config: ZetaConfig, zeta: u32) -> Zeta {
        let zeta = zeta.clamp(1, config.zeta_max);
        Zeta { config, zeta, calm: 0, calm_needed: WINDOWS_AGREE, broken: 0, cautious: false }
    }

    /// ζ to use.
    pub fn zeta(&self) -> u32 {
        self.zeta
    }

    /// Takes a window in; ζ to use from now on.
    pub fn window(&mut self, w: ZetaWindow) -> u32 {
        let bound = self.config.unfairness_max_milli;
        let over = |v: Option<u64>, b: Option<u64>| matches!((v, b), (Some(v), Some(b)) if v > b);
        let limit = self.config.variability_max_milli;
        let twice = |v: Option<u64>| v.map(|v| v * 2);
        // One bound alone breaks it: where few wait, unfairness can't be told, and a tail may be missed all the same.
        let broken =
            over(w.unfairness_milli, Some(bound)) || over(w.variability_milli, limit) || over(w.tail_milli, Some(1000));
        if !broken && w.unfairness_milli.is_none() {
            return self.zeta;
        }
        let calm = w.unfairness_milli.is_some_and(|u| u * 2 < bound)
            && !over(twice(w.variability_milli), limit)
            && !over(twice(w.tail_milli), Some(1000));
        self.broken = if broken { self.broken + 1 } else { 0 };
        self.calm = if calm { self.calm + 1 } else { 0 };
        if self.broken >= WINDOWS_AGREE {
            // The paper halves only after an increase; a bound that stays broken is followed down further.
            self.zeta = (self.zeta / 2).max(1);
            (self.broken, self.cautious) = (0, true);
            self.calm_needed = (self.calm_needed * 2).min(CALM_NEEDED_MAX);
        } else if self.calm >= self.calm_needed {
            let more = if self.cautious { self.zeta + 1 } else { self.zeta * 2 };
            self.zeta = more.min(self.config.zeta_max);
            self.calm = 0;
        }
        self.zeta
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(u: u64) -> ZetaWindow {
        ZetaWindow { unfairness_milli: Some(u), ..ZetaWindow::NONE }
    }

    #[test]
    fn it_doubles_while_calm_and_halves_when_a_bound_breaks() {
        let mut z = Zeta::new(ZetaConfig::default(), 1);
        let path: Vec<u32> = (0..8).map(|_| z.window(window(20))).collect();
        assert_eq!(path, [1, 2, 2, 4, 4, 8, 8, 16]);
        assert_eq!((z.window(window(150)), z.window(window(150))), (16, 8));
        let path: Vec<u32> = (0..8).map(|_| z.window(window(20))).collect();
        assert_eq!(path, [8, 8, 8, 9, 9, 9, 9, 10], "then one by one, each after twice as long");
        assert_eq!((z.window(window(70)), z.window(window(70))), (10, 10), "between half and whole nothing moves");
        let mut z = Zeta::new(ZetaConfig::default(), 1);
        assert_eq!(z.window(ZetaWindow::NONE), 1);
    }

    #[test]
    fn it_settles_below_a_bound_that_grows_with_zeta() {
        let mut z = Zeta::new(ZetaConfig::default(), 1);
        let last: Vec<u32> = (0..400)
            .map(|_| {
                let u = u64::from(z.zeta()) * 5;
                z.window(window(u))
            })
            .skip(200)
            .collect();
        assert!(last.iter().all(|z| (5..=20).contains(z)), "{last:?}");
    }

    /// One is fair, two is not: nearly all of the time is spent at one.
    #[test]
    fn it_does_not_swing_for_ever() {
        let mut z = Zeta::new(ZetaConfig::default(), 2);
        let at_two = (0..1000).filter(|_| z.window(window(if z.zeta() == 1 { 10 } else { 400 })) > 1).count();
        assert!(at_two <= 60, "{at_two} of 1000");
    }

    #[test]
    fn variability_binds_too() {
        let config = ZetaConfig { variability_max_milli: Some(900), ..ZetaConfig::default() };
        let mut z = Zeta::new(config, 8);
        let w = ZetaWindow { unfairness_milli: Some(10), variability_milli: Some(1000), tail_milli: None };
        assert_eq!((z.window(w), z.window(w)), (8, 4));
        let w = ZetaWindow { unfairness_milli: Some(10), variability_milli: None, tail_milli: Some(1001) };
        assert_eq!((z.window(w), z.window(w)), (4, 2), "and so do tails");
        let w = ZetaWindow { unfairness_milli: None, ..w };
        assert_eq!((z.window(w), z.window(w)), (2, 1), "of whose users few wait");
    }
}
