//! Operators on sequences of tokens and words.

use crate::data::{f64s, from_f64s, ints};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

fn fail(text: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// `NGramRepeatBlock`: `scores [b, vocabulary]`, with -∞ for every token that would make the last `n - 1` tokens of `ids [b, length]` and
/// itself a group of `n` that the sequence has already.
///
/// # Errors
/// `Shape` when operands do not fit, or a token is not in the vocabulary.
pub fn block_repeated(ids: &Tensor, scores: &Tensor, n: usize) -> Result<Tensor> {
    let (&[b, length], &[rows, vocabulary]) = (ids.shape(), scores.shape()) else {
        return Err(fail("NGramRepeatBlock: operands have 2 axes"));
    };
    if b != rows || n == 0 {
        return Err(fail("NGramRepeatBlock: a row of scores for each sequence, and groups of at least 1"));
    }
    let (tokens, mut y) = (ints(ids), f64s(scores));
    for row in 0..b {
        let all = &tokens[row * length..(row + 1) * length];
        let Some(end) = (length + 1).checked_sub(n).map(|from| &all[from.min(length)..]) else { continue };
        for group in all.windows(n).filter(|g| g[..n - 1] == *end) {
            let token = usize::try_from(group[n - 1]).ok().filter(|&t| t < vocabulary);
            y[row * vocabulary + token.ok_or_else(|| fail("a token is not in the vocabulary"))?] = f64::NEG_INFINITY;
        }
    }
    Ok(from_f64s(scores.dtype(), scores.shape(), &y))
}

/// `WordConvEmbedding`: for each word, a row of characters in `words [s, length]` of which 0 is none, the greatest tanh of what each of the
/// kernels `w [m, 1, k, e]` with its bias makes of `k` characters in turn, as they are embedded in `table [v, e]`. A word shorter than a
/// kernel has one place, one without characters is zeros.
///
/// # Errors
/// `Shape` when operands do not fit, or a character is not in the table.
pub fn embed_words(words: &Tensor, w: &Tensor, bias: &Tensor, table: &Tensor) -> Result<Tensor> {
    let (&[s, length], &[m, 1, k, e], &[v, width]) = (words.shape(), w.shape(), table.shape()) else {
        return Err(fail("WordConvEmbedding: operands do not fit"));
    };
    if width != e || bias.shape() != [m] || k > length || k == 0 || (v == 0 && s > 0) {
        return Err(fail("WordConvEmbedding: operands do not fit"));
    }
    let (chars, kernels, bias, table) = (ints(words), f64s(w), f64s(bias), f64s(table));
    let mut y = vec![0.0; s * m];
    for word in 0..s {
        let own = &chars[word * length..(word + 1) * length];
        let n = if own[0] > 0 { own.iter().filter(|&&c| c > 0).count() } else { 0 };
        if n == 0 {
            continue;
        }
        for filter in 0..m {
            let mut best = f64::NEG_INFINITY;
            for place in 0..n.max(k) + 1 - k {
                let mut sum = bias[filter];
                for (i, j) in (0..k).flat_map(|i| (0..e).map(move |j| (i, j))) {
                    let row = usize::try_from(own[place + i]).ok().filter(|&c| c < v);
                    let row = row.ok_or_else(|| fail("a character is not in the table"))?;
                    sum += kernels[(filter * k + i) * e + j] * table[row * e + j];
                }
                best = best.max(sum.tanh());
            }
            y[word * m + filter] = best;
        }
    }
    Ok(from_f64s(w.dtype(), &[s, m], &y))
}
