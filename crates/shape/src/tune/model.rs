//! Throughput as a function of delivered parallelism (AppleS §4.3.1, Eq. 1 and 2, Appendix A; AP-M8, AP-M9, AP-M15).
//!
//! Requests run in parallel rounds of P or in sequential rounds of one; the parallel part is α(P) = A + B·e^(−γP). With α(P₀) = 1 that
//! gives λ(P) = P·λ₀ / (P₀ + B·P₀·(e^(−γP₀) − e^(−γP))·(P − 1)). Two more samples determine B and γ.

/// A measured point: throughput at a parallelism.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// P.
    pub p: u32,
    /// Transactions per second.
    pub rate: f64,
}

/// The fitted curve.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Curve {
    p0: f64,
    rate0: f64,
    /// B.
    pub b: f64,
    /// γ.
    pub gamma: f64,
}

const GAMMA_MIN: f64 = 1e-4;
const GAMMA_MAX: f64 = 4.0;

impl Curve {
    /// Through three points of increasing P; `None` if they show no loss of parallelism (throughput grew with P or
    /// faster), so that no curve of this kind has a peak among them (AP-A2: the caller sweeps instead).
    ///
    /// γ is found by bisection of the quotient of the two equations, in which B cancels and which grows with γ; a quotient that no
    /// γ gives (noise) takes the nearest end.
    pub fn fit(points: [Point; 3]) -> Option<Curve> {
        let [p0, p1, p2] = points;
        let valid = 0 < p0.p && p0.p < p1.p && p1.p < p2.p && points.iter().all(|x| x.rate > 0.0);
        if !valid {
            return None;
        }
        let base = f64::from(p0.p);
        // What of the time at P is lost to sequential rounds: B·(e^(−γP₀) − e^(−γP))·(P − 1).
        let loss = |x: Point| f64::from(x.p) * p0.rate / x.rate / base - 1.0;
        let (loss1, loss2) = (loss(p1), loss(p2));
        if loss1 <= 0.0 || loss2 <= 0.0 {
            return None;
        }
        let shape = |x: Point, g: f64| ((-g * base).exp() - (-g * f64::from(x.p)).exp()) * (f64::from(x.p) - 1.0);
        let quotient = |g: f64| shape(p1, g) / shape(p2, g);
        let want = loss1 / loss2;
        let (mut low, mut high) = (GAMMA_MIN, GAMMA_MAX / base.max(1.0));
        for _ in 0..80 {
            let middle = (low * high).sqrt();
            if quotient(middle) < want { low = middle } else { high = middle }
        }
        let gamma = (low * high).sqrt();
        Some(Curve { p0: base, rate0: p0.rate, b: loss2 / shape(p2, gamma), gamma })
    }

    /// λ(P).
    pub fn rate(&self, p: u32) -> f64 {
        let p = f64::from(p);
        let lost = self.b * self.p0 * ((-self.gamma * self.p0).exp() - (-self.gamma * p).exp()) * (p - 1.0);
        p * self.rate0 / (self.p0 + lost)
    }

    /// α(P), the part of the time spent in parallel rounds.
    pub fn alpha(&self, p: u32) -> f64 {
        1.0 - self.b * ((-self.gamma * self.p0).exp() - (-self.gamma * f64::from(p)).exp())
    }

    /// The matching point: the first local maximum of λ in `low..=high`.
    pub fn peak(&self, low: u32, high: u32) -> u32 {
        (low..high).find(|p| self.rate(p + 1) <= self.rate(*p)).unwrap_or(high)
    }
}

/// α as it was measured: from λ(P) and λ(P₀), by the execution model of Appendix A.
pub fn measured_alpha(p0: Point, x: Point) -> f64 {
    // λ(P)/λ(P₀) = P / (P₀·(α + (1 − α)·P)), as a request takes T/N = P₀/λ(P₀).
    let p = f64::from(x.p);
    let slowdown = p * p0.rate / x.rate / f64::from(p0.p);
    if p <= 1.0 { 1.0 } else { (p - slowdown) / (p - 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth() -> Curve {
        Curve { p0: 4.0, rate0: 1000.0, b: 0.25, gamma: 0.05 }
    }

    #[test]
    fn three_points_of_a_curve_give_the_curve() {
        let t = truth();
        let at = |p| Point { p, rate: t.rate(p) };
        for middle in [8, 12, 20, 40, 80] {
            let fit = Curve::fit([at(4), at(middle), at(128)]).unwrap();
            assert!((fit.b - t.b).abs() < 1e-6 && (fit.gamma - t.gamma).abs() < 1e-6, "{fit:?}");
            assert_eq!(fit.peak(1, 128), t.peak(1, 128));
        }
        for p in [4, 9, 31, 128] {
            assert!((measured_alpha(at(4), at(p)) - t.alpha(p)).abs() < 1e-9);
        }
    }

    #[test]
    fn points_without_loss_have_no_curve() {
        let at = |p, rate| Point { p, rate };
        assert_eq!(Curve::fit([at(4, 100.0), at(8, 210.0), at(16, 420.0)]), None);
        assert_eq!(Curve::fit([at(4, 100.0), at(4, 100.0), at(16, 420.0)]), None);
        assert_eq!(Curve::fit([at(4, 0.0), at(8, 100.0), at(16, 420.0)]), None);
    }
}
