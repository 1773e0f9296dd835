//! Small systems of linear equations, for fits of a handful of weights. Floats: what is fitted is rounded before it decides.

/// Solves `a · x = b` for a symmetric positive definite `a`, by elimination with pivoting; `None` if it is singular.
pub fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Option<Vec<f64>> {
    let n = b.len();
    for column in 0..n {
        let pivot = (column..n).max_by(|&i, &j| a[i][column].abs().total_cmp(&a[j][column].abs()))?;
        if a[pivot][column].abs() < 1e-12 {
            return None;
        }
        a.swap(column, pivot);
        b.swap(column, pivot);
        let (above, below) = a.split_at_mut(column + 1);
        let top = &above[column];
        for (i, row) in below.iter_mut().enumerate() {
            let factor = row[column] / top[column];
            for (x, t) in row[column..].iter_mut().zip(&top[column..]) {
                *x -= factor * t;
            }
            b[column + 1 + i] -= factor * b[column];
        }
    }
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|k| a[row][k] * b[k]).sum();
        b[row] = (b[row] - known) / a[row][row];
    }
    Some(b)
}

/// Weights `w` that minimise the squared error of `features · w` against `targets`; `None` if they aren't determined.
pub fn least_squares(features: &[Vec<f64>], targets: &[f64]) -> Option<Vec<f64>> {
    let n = features.first()?.len();
    let mut a = vec![vec![0.0; n]; n];
    let mut b = vec![0.0; n];
    for (x, y) in features.iter().zip(targets) {
        for i in 0..n {
            b[i] += x[i] * y;
            for j in 0..n {
                a[i][j] += x[i] * x[j];
            }
        }
    }
    // A feature that never occurs gets no weight instead of spoiling the rest.
    for (i, row) in a.iter_mut().enumerate() {
        row[i] += 1e-9 * (1.0 + row[i]);
    }
    solve(a, b)
}

/// Rounds of [`least_deviations`].
const ROUNDS: usize = 30;

/// Weights that minimise the summed absolute error, by least squares that weigh each row by how well it was met before; errors
/// below `fine` count alike. Rare rows with large errors don't move the weights: they are right for most rows.
pub fn least_deviations(features: &[Vec<f64>], targets: &[f64], fine: f64) -> Option<Vec<f64>> {
    let mut w = least_squares(features, targets)?;
    for _ in 0..ROUNDS {
        let weight = |(x, y): (&Vec<f64>, &f64)| {
            let error: f64 = x.iter().zip(&w).map(|(x, w)| x * w).sum::<f64>() - y;
            1.0 / error.abs().max(fine).sqrt()
        };
        let weights: Vec<f64> = features.iter().zip(targets).map(weight).collect();
        let rows: Vec<Vec<f64>> =
            features.iter().zip(&weights).map(|(x, k)| x.iter().map(|x| x * k).collect()).collect();
        let ys: Vec<f64> = targets.iter().zip(&weights).map(|(y, k)| y * k).collect();
        w = least_squares(&rows, &ys)?;
    }
    Some(w)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn a_fifth_of_wild_rows_does_not_move_the_least_deviations() {
        let mut rng = Rng::new(3, "wild");
        let features: Vec<Vec<f64>> = (0..500).map(|_| vec![1.0, rng.unit() * 100.0]).collect();
        let wild = |rng: &mut Rng| if rng.chance(0.2) { 1000.0 } else { 0.01 * rng.normal() };
        let targets: Vec<f64> = features.iter().map(|x| 3.0 + 0.5 * x[1] + wild(&mut rng)).collect();
        let w = least_deviations(&features, &targets, 0.01).unwrap();
        assert!((w[0] - 3.0).abs() < 0.1 && (w[1] - 0.5).abs() < 0.01, "{w:?}");
        let w = least_squares(&features, &targets).unwrap();
        assert!(w[0] > 100.0, "which they do move: {w:?}");
    }

    #[test]
    fn least_squares_finds_the_line() {
        let mut rng = Rng::new(2, "line");
        let features: Vec<Vec<f64>> = (0..500).map(|_| vec![1.0, rng.unit() * 100.0, rng.unit()]).collect();
        let targets: Vec<f64> = features.iter().map(|x| 3.0 + 0.5 * x[1] - 7.0 * x[2] + 0.01 * rng.normal()).collect();
        let w = least_squares(&features, &targets).unwrap();
        for (got, want) in w.iter().zip([3.0, 0.5, -7.0]) {
            assert!((got - want).abs() < 0.01, "{w:?}");
        }
    }
}
