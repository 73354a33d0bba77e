//! Weights of a few bits in bytes, as loop nests read them: codes are cut out of bytes where they are used.

use super::super::loops::{Builder, inner};
use crate::lowering::Plan;
use crate::nest::{BinOp, Coord, Expr, ExprId, Term};
use tensor::DType::{F32, U32};
use tensor::DimId;

/// Rows of codes in blocks of equal scale. `inner` of the nest has three axes: the block of a row, the group of codes of the block that
/// fills whole bytes, and the code of the group. The last is short and known, so that it is unrolled, and the one before it is the vector
/// loop: bytes and elements are then neighbors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    /// Bits of a code.
    pub bits: i64,
    /// Blocks of a row.
    pub blocks: DimId,
    /// Bytes of a block.
    pub bytes: DimId,
}

impl Codes {
    /// Codes and bytes of a group.
    pub fn group(bits: i64) -> (i64, i64) {
        if 8 % bits == 0 { (8 / bits, 1) } else { (8, bits) }
    }
    /// Sets the nest's inner axes.
    pub fn loops(&self, b: &mut Builder) {
        let (per, bytes) = Codes::group(self.bits);
        let (per, bytes) = (b.c.dims.constant(per), b.c.dims.constant(bytes));
        let groups = b.c.dims.floordiv(self.bytes, bytes);
        b.nest.inner = vec![self.blocks, groups, per];
    }
    /// The element's place in its row.
    pub fn place(&self, b: &mut Builder) -> Coord {
        let (per, bytes) = Codes::group(self.bits);
        let (per, bytes) = (b.c.dims.constant(per), b.c.dims.constant(bytes));
        let (zero, one) = (b.c.dims.constant(0), b.c.dims.constant(1));
        let groups = b.c.dims.floordiv(self.bytes, bytes);
        let block = b.c.dims.mul(groups, per);
        let terms = [(inner(0), block), (inner(1), per), (inner(2), one)];
        Coord { offset: zero, terms: terms.into_iter().map(|(a, step)| (Term::Axis(a), step)).collect() }
    }
    /// The code of the element of the row at the coordinates `row` of an operand. With `own_axis` blocks have an axis there, and
    /// `row` ends before it; else all bytes of a row lie along one axis.
    pub fn code(&self, b: &mut Builder, operand: usize, mut row: Vec<Coord>, own_axis: bool) -> Plan<ExprId> {
        let (per, bytes) = Codes::group(self.bits);
        let bytes = b.c.dims.constant(bytes);
        let zero = b.c.dims.constant(0);
        let mut from = b.affine(zero, bytes, inner(1));
        if own_axis {
            row.push(b.along(inner(0)));
        } else {
            from.terms.push((Term::Axis(inner(0)), self.bytes));
        }
        let line = Line { operand, row, from, bits: self.bits };
        if per == 1 {
            return line.byte(b, None);
        }
        let j = b.nest.expr(Expr::Index(inner(2)));
        if per * self.bits > 8 {
            return line.code(b, j, None);
        }
        let width = b.int(self.bits);
        let bit = b.bin(BinOp::Mul, j, width);
        let byte = line.byte(b, None)?;
        Ok(line.shifted(b, byte, bit))
    }
}

/// Numbers of a few bits one after the other in the bytes of an operand, lowest bits first.
pub(super) struct Line {
    /// Whose bytes.
    pub operand: usize,
    /// Coordinates but the last.
    pub row: Vec<Coord>,
    /// The last coordinate of the first byte.
    pub from: Coord,
    /// Bits of a number.
    pub bits: i64,
}

impl Line {
    /// The byte that is `at` bytes after the first, read where `cond` holds, else 0.
    fn byte_at(&self, b: &mut Builder, at: Option<ExprId>, cond: Option<ExprId>) -> Plan<ExprId> {
        let one = b.c.dims.constant(1);
        let mut last = self.from.clone();
        last.terms.extend(at.map(|e| (Term::Expr(e), one)));
        let other = b.nest.num(0.0, U32);
        b.load_if(self.operand, self.row.iter().cloned().chain([last]), cond, other)
    }
    /// The first byte, read where `cond` holds.
    pub fn byte(&self, b: &mut Builder, cond: Option<ExprId>) -> Plan<ExprId> {
        self.byte_at(b, None, cond)
    }
    /// The number from bit `bit` of a word on.
    fn shifted(&self, b: &mut Builder, word: ExprId, bit: ExprId) -> ExprId {
        let (bit, mask) = (b.nest.cast(bit, U32), b.nest.num(f64::from((1u32 << self.bits) - 1), U32));
        let v = b.bin(BinOp::Shr, word, bit);
        b.bin(BinOp::And, v, mask)
    }
    /// The `j`-th number, read where `cond` holds.
    pub fn code(&self, b: &mut Builder, j: ExprId, cond: Option<ExprId>) -> Plan<ExprId> {
        if self.bits == 8 {
            return self.byte_at(b, Some(j), cond);
        }
        let (width, eight) = (b.int(self.bits), b.int(8));
        let bit = b.bin(BinOp::Mul, j, width);
        let (byte, rest) = (b.bin(BinOp::Div, bit, eight), b.bin(BinOp::Rem, bit, eight));
        let mut word = self.byte_at(b, Some(byte), cond)?;
        if 8 % self.bits != 0 {
            // Some numbers go on in the next byte.
            let end = b.bin(BinOp::Add, rest, width);
            let goes_on = b.bin(BinOp::Gt, end, eight);
            let cond = b.and(Some(goes_on), cond);
            let step = b.int(1);
            let next = b.bin(BinOp::Add, byte, step);
            let high = self.byte_at(b, Some(next), cond)?;
            let up = b.nest.num(8.0, U32);
            let high = b.bin(BinOp::Shl, high, up);
            word = b.bin(BinOp::Or, word, high);
        }
        Ok(self.shifted(b, word, rest))
    }
}

/// `(code - zero) · scale` in f32; the zero point is half of the range where there is none.
pub(super) fn dequantized(b: &mut Builder, code: ExprId, zero: Option<ExprId>, scale: ExprId, bits: i64) -> ExprId {
    let [code, scale] = [code, scale].map(|e| b.nest.cast(e, F32));
    let zero = match zero {
        Some(z) => b.nest.cast(z, F32),
        None => b.nest.num(f64::from(1u32 << (bits - 1)), F32),
    };
    let v = b.bin(BinOp::Sub, code, zero);
    b.bin(BinOp::Mul, v, scale)
}
