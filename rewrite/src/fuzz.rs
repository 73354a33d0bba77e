//! What the fuzz target `rewrite` and its smoke test check.

/// Imports `data` as a model and rewrites it; says whether it was a valid model. Must not panic on any input.
pub fn rewrite(data: &[u8]) -> bool {
    let registry = ir::Registry::builtin();
    let Ok(mut m) = ir::import::import_bytes(bytes::Bytes::copy_from_slice(data), None, &registry) else {
        return false;
    };
    if ir::infer::infer(&mut m).is_err() {
        return false;
    }
    crate::rewrite(&mut m, &crate::Options::default()).is_ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn changed_models_do_not_panic() {
        let mut m = ir::generate::dag(&ir::Registry::builtin(), 40, 3);
        ir::infer::infer(&mut m).expect("generated models are valid");
        let bytes = ir::export::to_onnx(&m).expect("generated models can be written");
        assert!(super::rewrite(&bytes), "the model as it is");
        for i in 0..200usize {
            let mut b = bytes.clone();
            let at = i * 7919 % b.len();
            b[at] ^= 1 << (i % 8);
            super::rewrite(&b);
        }
    }
}
