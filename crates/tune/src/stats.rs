//! Probability that chance alone explains an observation.

/// The probability of `k` or more of `n` tries, each of which succeeds with probability `p`; `k` and `n` may be parts of tries,
/// as weights of histograms are.
pub fn binomial_at_least(k: f64, n: f64, p: f64) -> f64 {
    if k <= 0.0 {
        1.0
    } else if k > n {
        0.0
    } else {
        incomplete_beta(p, k, n - k + 1.0)
    }
}

/// Returns the probability that at least `k` of `n` new requests are of a kind by chance, if the share of that kind among `m`
/// old ones was `rate` and nothing changed. It is the conditional test of two Poisson rates: of all requests of that kind a
/// share of `n / (n + m)` is new. `m` may be infinite: then the rate is exact.
pub fn more_than_before((k, n): (f64, f64), (rate, m): (f64, f64)) -> f64 {
    // Beyond so many of either the test is as sharp as it needs to be, and its continued fraction needn't be longer.
    let m = m.min(COUNTED_MAX / rate);
    let less = (COUNTED_MAX / k).min(1.0);
    let (k, n) = (k * less, n * less);
    binomial_at_least(k, k + rate * m, n / (n + m))
}

/// Counts above this are taken for it.
const COUNTED_MAX: f64 = 5_000.0;

/// P(|T| > |t|) for Student's t.
pub fn student_two_sided(t: f64, free: f64) -> f64 {
    incomplete_beta(free / (free + t * t), free / 2.0, 0.5)
}

/// The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22).
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    // Evaluated from the far end: 200 terms are far more than the few that matter here.
    let term = |m: f64| {
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        (even, odd)
    };
    let mut fraction = 0.0;
    for m in (0..200).rev().map(f64::from) {
        let (even, odd) = term(m);
        fraction = odd / (1.0 + fraction);
        if m > 0.0 {
            fraction = even / (1.0 + fraction);
        }
    }
    front / (1.0 + fraction)
}

/// ln Γ(x) for x > 0 by Stirling's series, shifted up to where it is exact to 12 digits.
fn ln_gamma(x: f64) -> f64 {
    if x < 10.0 {
        return ln_gamma(x + 1.0) - x.ln();
    }
    let i = 1.0 / (x * x);
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + (1.0 / 12.0 - i * (1.0 / 360.0 - i / 1260.0)) / x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_t_has_its_quantiles() {
        // From tables: two-sided 5 % at 4 degrees 2.776, at 10 degrees 2.228; 1 % at 7 degrees 3.499.
        for (t, free, p) in [(2.776, 4.0, 0.05), (2.228, 10.0, 0.05), (3.499, 7.0, 0.01), (0.0, 5.0, 1.0)] {
            assert!((student_two_sided(t, free) - p).abs() < 2e-4, "{t} {free}: {}", student_two_sided(t, free));
        }
    }

    #[test]
    fn a_binomial_has_its_tail() {
        let sum = |k: u32, n: u32, p: f64| -> f64 {
            let mut term = (1.0 - p).powi(n as i32);
            let mut below = 0.0;
            for i in 0..k {
                below += term;
                term *= f64::from(n - i) / f64::from(i + 1) * p / (1.0 - p);
            }
            1.0 - below
        };
        for (k, n, p) in [(1, 10, 0.1), (5, 10, 0.5), (25, 1_000, 0.01), (60, 5_000, 0.01), (10, 10, 0.9)] {
            let ours = binomial_at_least(f64::from(k), f64::from(n), p);
            assert!((ours - sum(k, n, p)).abs() < 1e-9, "{k} of {n} at {p}: {ours} {}", sum(k, n, p));
        }
        assert_eq!((binomial_at_least(0.0, 9.0, 0.1), binomial_at_least(10.0, 9.0, 0.1)), (1.0, 0.0));
    }

    #[test]
    fn an_old_rate_that_was_seen_rarely_is_believed_less() {
        let exact = more_than_before((25.0, 1_000.0), (0.01, f64::INFINITY));
        let many = binomial_at_least(25.0, 1_000.0, 0.01);
        let few = more_than_before((25.0, 1_000.0), (0.01, 1_000.0));
        assert!(exact < 1e-4 && (many / exact - 1.0).abs() < 0.3 && few > 1e-3, "{exact} {many} {few}");
        // As many as before is nothing strange, however many there are.
        for n in [1e2, 1e4, 1e8] {
            assert!(more_than_before((0.01 * n, n), (0.01, n)) > 0.3, "{n}");
        }
        assert!(more_than_before((4e6, 1e8), (0.01, 1e8)) < 1e-12);
    }
}
