//! Steps of optimizers: new values of weights `x` and of what is kept with them, from gradients `g`.

/// Momentum: weights and momentum `v` after a step.
pub fn momentum(
    rate: f64,
    [alpha, beta, norm]: [f64; 3],
    nesterov: bool,
    x: &[f64],
    g: &[f64],
    v: &[f64],
) -> [Vec<f64>; 2] {
    let step = |((&x, &g), &v): ((&f64, &f64), &f64)| {
        let g = norm * x + g;
        let v = alpha * v + beta * g;
        (x - rate * if nesterov { g + alpha * v } else { v }, v)
    };
    let (x, v) = x.iter().zip(g).zip(v).map(step).unzip();
    [x, v]
}

/// Adagrad: weights and accumulated squares `h` after a step.
pub fn adagrad(rate: f64, epsilon: f64, norm: f64, x: &[f64], g: &[f64], h: &[f64]) -> [Vec<f64>; 2] {
    let step = |((&x, &g), &h): ((&f64, &f64), &f64)| {
        let g = norm * x + g;
        let h = h + g * g;
        (x - rate * g / (h.sqrt() + epsilon), h)
    };
    let (x, h) = x.iter().zip(g).zip(h).map(step).unzip();
    [x, h]
}

/// Numbers of [`adam`].
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// Step size, with the correction for the number of steps.
    pub rate: f64,
    /// Share of the averages that stays: of gradients, of their squares.
    pub keep: [f64; 2],
    /// Added to roots.
    pub epsilon: f64,
    /// Share of a weight added to its gradient.
    pub norm: f64,
    /// Share of a new weight that is taken away.
    pub norm_post: f64,
}

/// Adam: weights, average gradients `v` and average squares `h` after a step.
pub fn adam(p: Adam, x: &[f64], g: &[f64], v: &[f64], h: &[f64]) -> [Vec<f64>; 3] {
    let mut out = [vec![], vec![], vec![]];
    for (((&x, &g), &v), &h) in x.iter().zip(g).zip(v).zip(h) {
        let g = p.norm * x + g;
        let v = p.keep[0] * v + (1.0 - p.keep[0]) * g;
        let h = p.keep[1] * h + (1.0 - p.keep[1]) * g * g;
        let x = (1.0 - p.norm_post) * (x - p.rate * v / (h.sqrt() + p.epsilon));
        out.iter_mut().zip([x, v, h]).for_each(|(o, y)| o.push(y));
    }
    out
}
