//! Geometry of sliding windows over symbolic images: pads, extents of results, coordinates in loops.

use super::loops::{Builder, inner, outer};
use crate::attrs::Attrs;
use crate::lowering::Plan;
use crate::nest::{BinOp, Coord, Expr, ExprId, Term};
use crate::op::InferCtx;
use reference::conv::Window;
use smallvec::smallvec;
use tensor::dims::Proof;
use tensor::{Diagnostic, DimId, DimPool, ErrorKind, Result};

/// Slots of the attributes that rows of convolution and pooling share.
pub const AUTO_PAD: usize = 0;
/// See [`AUTO_PAD`].
pub const KERNEL: usize = 1;
/// See [`AUTO_PAD`].
pub const PADS: usize = 2;
/// See [`AUTO_PAD`].
pub const STRIDES: usize = 3;

/// Windows over an image, one entry per spatial axis.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Extents of the image.
    pub image: Vec<DimId>,
    /// Extents of the window.
    pub kernel: Vec<i64>,
    /// Steps between windows.
    pub strides: Vec<i64>,
    /// Steps within a window.
    pub dilations: Vec<i64>,
    /// Pads before.
    pub begin: Vec<DimId>,
    /// Pads after.
    pub end: Vec<DimId>,
    /// Number of windows.
    pub outs: Vec<DimId>,
}

/// Whether `auto_pad` chooses the pads so that there are as many windows as strides fit the image.
pub(crate) fn pads_itself(attrs: &Attrs) -> bool {
    matches!(attrs.str(AUTO_PAD), Some("SAME_UPPER" | "SAME_LOWER"))
}

fn fail(text: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// How windows move, as numbers. Attribute lists of the wrong length or with values that are not positive are refused.
pub(crate) struct Steps {
    pub strides: Vec<i64>,
    pub dilations: Vec<i64>,
    pub pads: Option<Vec<i64>>,
}

pub(crate) fn steps(attrs: &Attrs, dilations: Option<usize>, rank: usize) -> Result<Steps> {
    let pads = attrs.ints(PADS).map(|p| p.to_vec());
    if pads.as_ref().is_some_and(|p| p.len() != 2 * rank || p.iter().any(|x| x.unsigned_abs() >= 1 << 31)) {
        return Err(fail(format!("pads {:?} must be {} numbers", attrs.ints(PADS), 2 * rank)));
    }
    let strides = positive(attrs, Some(STRIDES), rank, "strides")?;
    Ok(Steps { strides, dilations: positive(attrs, dilations, rank, "dilations")?, pads })
}

/// A list of one positive number per axis; ones where it is absent.
fn positive(attrs: &Attrs, slot: Option<usize>, rank: usize, what: &str) -> Result<Vec<i64>> {
    let v = slot.and_then(|s| attrs.ints(s)).map_or(vec![1; rank], |v| v.to_vec());
    match v.len() == rank && v.iter().all(|&x| x > 0 && x < 1 << 31) {
        true => Ok(v),
        false => Err(fail(format!("{what} {v:?} must be {rank} positive numbers"))),
    }
}

/// The window that the attribute states, or the weight has, if both are known the same.
pub(crate) fn kernel_shape(attrs: &Attrs, rank: usize, weight: Option<Vec<i64>>) -> Result<Option<Vec<i64>>> {
    let given = attrs.ints(KERNEL).map(|_| positive(attrs, Some(KERNEL), rank, "kernel_shape")).transpose()?;
    match (given, weight) {
        (Some(a), Some(b)) if a != b => Err(fail(format!("kernel_shape {a:?} differs from the weight's {b:?}"))),
        (given, weight) => Ok(given.or(weight)),
    }
}

/// Windows of a node over an image. `kernel` is what the weight says.
///
/// # Errors
/// `Shape` when attributes do not fit, `Unsupported` for an unknown `auto_pad`.
pub fn geometry(
    p: &mut DimPool,
    attrs: &Attrs,
    dilations: Option<usize>,
    image: &[DimId],
    kernel: Option<Vec<i64>>,
    ceil: bool,
) -> Result<Geometry> {
    let rank = image.len();
    let kernel = kernel_shape(attrs, rank, kernel)?.ok_or_else(|| fail("kernel_shape is missing".into()))?;
    let n = steps(attrs, dilations, rank)?;
    let auto = attrs.str(AUTO_PAD).unwrap_or("NOTSET");
    let same = pads_itself(attrs);
    if !same && !matches!(auto, "NOTSET" | "VALID" | "") {
        return Err(Diagnostic::new(ErrorKind::Unsupported, format!("auto_pad {auto:?} is not known")));
    }
    let (zero, one) = (p.constant(0), p.constant(1));
    let (mut begin, mut end, mut outs) = (vec![zero; rank], vec![zero; rank], Vec::new());
    for a in 0..rank {
        let span = p.constant((kernel[a] - 1).saturating_mul(n.dilations[a]).saturating_add(1));
        let s = p.constant(n.strides[a]);
        if same {
            let out = p.ceildiv(image[a], s);
            let last = p.sub(out, one);
            let reach = p.mul(last, s);
            let reach = p.add(reach, span);
            let total = p.sub(reach, image[a]);
            let total = p.max(total, zero);
            let two = p.constant(2);
            let small = p.floordiv(total, two);
            let large = p.sub(total, small);
            (begin[a], end[a]) = if auto == "SAME_UPPER" { (small, large) } else { (large, small) };
            outs.push(out);
            continue;
        }
        if let (Some(pads), false) = (&n.pads, auto == "VALID") {
            begin[a] = p.constant(pads[a]);
            end[a] = p.constant(pads[a + rank]);
        }
        let padded = p.add(image[a], begin[a]);
        let whole = p.add(padded, end[a]);
        let room = p.sub(whole, span);
        let steps = if ceil { p.ceildiv(room, s) } else { p.floordiv(room, s) };
        let mut out = p.add(steps, one);
        if ceil {
            // A window that begins in the padding after the image does not count.
            let start = p.mul(steps, s);
            let over = p.sub(start, padded);
            let over = p.add(over, one);
            let over = super::extents::clamp(p, over, zero, one);
            out = p.sub(out, over);
        }
        outs.push(out);
    }
    let Steps { strides, dilations, .. } = n;
    Ok(Geometry { image: image.to_vec(), kernel, strides, dilations, begin, end, outs })
}

/// Windows of a node over an image of known extents, for references.
///
/// # Errors
/// As [`geometry`].
pub fn window(
    attrs: &Attrs,
    dilations: Option<usize>,
    image: &[usize],
    kernel: Option<&[usize]>,
    ceil: bool,
) -> Result<Window> {
    let mut p = DimPool::new();
    let dims: Vec<DimId> = image.iter().map(|&d| p.constant(d as i64)).collect();
    let kernel = kernel.map(|k| k.iter().map(|&d| d as i64).collect());
    let g = geometry(&mut p, attrs, dilations, &dims, kernel, ceil)?;
    let to = |v: &[i64]| v.iter().map(|&x| x as usize).collect::<Vec<_>>();
    let num = |v: &[DimId]| v.iter().map(|&d| p.as_const(d).unwrap_or(0)).collect::<Vec<_>>();
    Ok(Window {
        kernel: to(&g.kernel),
        strides: to(&g.strides),
        dilations: to(&g.dilations),
        begin: num(&g.begin),
        end: num(&g.end),
        // With automatic padding the windows fit exactly.
        ceil: ceil && !pads_itself(attrs),
    })
}

/// Place in the image of inner position `axis` (of window axis `a`) at output position `outer(2 + a)`.
pub struct Taps {
    /// One coordinate per spatial axis.
    pub coords: Vec<Coord>,
    /// Whether the place is inside the image; `None` where it always is.
    pub inside: Option<ExprId>,
    /// Whether the place is inside the image and its padding; `None` where it always is.
    pub padded: Option<ExprId>,
}

impl Geometry {
    /// Coordinates of a window's elements; window axis `a` runs along `inner(first + a)`.
    pub fn taps(&self, b: &mut Builder, first: usize) -> Taps {
        let mut t = Taps { coords: Vec::new(), inside: None, padded: None };
        for a in 0..self.image.len() {
            let (s, d) = (b.c.dims.constant(self.strides[a]), b.c.dims.constant(self.dilations[a]));
            let (zero, one) = (b.c.dims.constant(0), b.c.dims.constant(1));
            let offset = b.c.dims.sub(zero, self.begin[a]);
            t.coords.push(Coord {
                offset,
                terms: smallvec![(Term::Axis(outer(2 + a)), s), (Term::Axis(inner(first + a)), d)],
            });
            let before = b.c.dims.prove_le(self.begin[a], zero) != Proof::Yes;
            // The last element of the last window.
            let last = b.c.dims.sub(self.outs[a], one);
            let last = b.c.dims.mul(last, s);
            let reach = b.c.dims.constant((self.kernel[a] - 1).saturating_mul(self.dilations[a]));
            let last = b.c.dims.add(last, reach);
            let last = b.c.dims.sub(last, self.begin[a]);
            let limit = b.c.dims.sub(self.image[a], one);
            let floors = self.floors(b.c.dims, a);
            let after = b.c.dims.prove_le(last, limit) != Proof::Yes && !(floors && self.end[a] == zero);
            if !before && !after {
                continue;
            }
            let (o, k) = (b.outer(2 + a), b.nest.expr(Expr::Index(inner(first + a))));
            let (si, di) = (b.dim(s), b.dim(d));
            let i = b.bin(BinOp::Mul, o, si);
            let j = b.bin(BinOp::Mul, k, di);
            let i = b.bin(BinOp::Add, i, j);
            let begin = b.dim(self.begin[a]);
            let i = b.bin(BinOp::Sub, i, begin);
            let inside = b.within(i, self.image[a], before, after);
            t.inside = b.and(t.inside, inside);
            let whole = b.c.dims.add(self.image[a], self.end[a]);
            if after && !floors {
                let padded = b.within(i, whole, false, true);
                t.padded = b.and(t.padded, padded);
            }
        }
        t
    }
    /// Whether the number of windows along `a` is rounded down from the padded image, so that none leaves it.
    fn floors(&self, p: &mut DimPool, a: usize) -> bool {
        let (one, s) = (p.constant(1), p.constant(self.strides[a]));
        let span = p.constant((self.kernel[a] - 1).saturating_mul(self.dilations[a]).saturating_add(1));
        let whole = p.add(self.image[a], self.begin[a]);
        let whole = p.add(whole, self.end[a]);
        let room = p.sub(whole, span);
        let n = p.floordiv(room, s);
        p.add(n, one) == self.outs[a]
    }
    /// Number of windows along each axis. A window that is larger than the padded image is refused, now or when a run starts: the
    /// formula rounds down there, to no window at all, where others round towards zero and count one that leaves the image.
    /// An empty image may have an empty result. Where the number is rounded up such a window is part of the operator's meaning.
    ///
    /// # Errors
    /// `Shape` when a window never fits, or the number is always negative.
    pub(crate) fn counted(&self, c: &mut InferCtx) -> Result<Vec<DimId>> {
        for a in 0..self.image.len() {
            if !self.floors(c.dims, a) {
                continue;
            }
            let (zero, one) = (c.dims.constant(0), c.dims.constant(1));
            let reach = (self.kernel[a] - 1).saturating_mul(self.dilations[a]).saturating_add(1);
            let span = c.dims.constant(reach);
            let pads = c.dims.add(self.begin[a], self.end[a]);
            let whole = c.dims.add(self.image[a], pads);
            // What an image of one element, and one of none, still lacks.
            let lacking = c.dims.sub(span, pads);
            let step = c.dims.constant(self.strides[a]);
            let may_be_empty =
                c.dims.prove_le(lacking, step) == Proof::Yes && c.dims.prove_le(self.image[a], zero) != Proof::No;
            if may_be_empty && c.dims.prove_le(lacking, one) == Proof::Yes {
                continue;
            }
            let needed = if may_be_empty {
                let some = c.dims.min(self.image[a], one);
                c.dims.mul(some, span)
            } else {
                span
            };
            let name = c.def.name;
            if c.dims.prove_le(needed, whole) == Proof::No {
                let (n, axis) = (c.dims.display(whole).to_string(), a + 2);
                let text =
                    format!("{name}: a window of {reach} is larger than the padded image, {n} along axis {axis}");
                return Err(c.error(ErrorKind::Shape, text).help("give a larger image, or pad it"));
            }
            c.require_le(needed, whole, &format!("{name}: a window must not be larger than the padded image"));
        }
        self.outs.iter().map(|&d| c.extent(d)).collect()
    }
    /// Extents of the window as dims.
    pub fn kernel_dims(&self, p: &mut DimPool) -> Vec<DimId> {
        self.kernel.iter().map(|&k| p.constant(k)).collect()
    }
    /// Whether every pad is known not to be negative.
    pub fn pads_outward(&self, p: &DimPool) -> bool {
        self.begin.iter().chain(&self.end).all(|&d| p.range(d).0 >= 0)
    }
    /// The two spatial axes of kernels: a single axis gets one of extent 1 before it.
    ///
    /// # Errors
    /// Refuses three axes and more.
    pub fn planar(&self, p: &mut DimPool) -> Plan<Geometry> {
        let (zero, one) = (p.constant(0), p.constant(1));
        match self.image.len() {
            2 => Ok(self.clone()),
            1 => {
                let dims = |first, v: &Vec<DimId>| vec![first, v[0]];
                let nums = |v: &Vec<i64>| vec![1, v[0]];
                Ok(Geometry {
                    image: dims(one, &self.image),
                    kernel: nums(&self.kernel),
                    strides: nums(&self.strides),
                    dilations: nums(&self.dilations),
                    begin: dims(zero, &self.begin),
                    end: dims(zero, &self.end),
                    outs: dims(one, &self.outs),
                })
            }
            n => Err(format!("the kernel has 2 spatial axes, not {n}").into()),
        }
    }
}
