//! ONNX's protobuf as a source of graphs.

use super::external::Files;
use super::source::*;
use crate::consts::{Const, ConstData};
use crate::graph::Meta;
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use tensor::onnx_pb::*;
use tensor::{DType, Diagnostic, ErrorKind, Result, pb};

/// Greatest size in bytes of a sparse tensor once it is dense.
const MAX_DENSE_BYTES: usize = 1 << 28;

/// A decoded model.
pub struct ProtoModel<'a> {
    /// The message.
    pub model: &'a ModelProto,
    /// Its main graph.
    pub graph: &'a GraphProto,
    /// Where external data is looked for.
    pub files: &'a Files,
}

struct ProtoGraph<'a> {
    name: &'a str,
    nodes: &'a [NodeProto],
    initializers: &'a [TensorProto],
    sparse: &'a [SparseTensorProto],
    inputs: &'a [ValueInfoProto],
    outputs: &'a [ValueInfoProto],
    files: &'a Files,
}

fn graph<'a>(g: &'a GraphProto, files: &'a Files) -> GraphRef<'a> {
    Rc::new(ProtoGraph {
        name: &g.name,
        nodes: &g.node,
        initializers: &g.initializer,
        sparse: &g.sparse_initializer,
        inputs: &g.input,
        outputs: &g.output,
        files,
    })
}

fn opsets(list: &[OperatorSetIdProto]) -> Vec<(String, i64)> {
    list.iter().map(|o| (if o.domain == "ai.onnx" { String::new() } else { o.domain.clone() }, o.version)).collect()
}

impl<'a> ModelSource<'a> for ProtoModel<'a> {
    fn meta(&self) -> Meta {
        let m = self.model;
        Meta {
            name: self.graph.name.clone(),
            producer: [m.producer_name.as_str(), m.producer_version.as_str()].join(" ").trim().to_string(),
            opsets: opsets(&m.opset_import),
            props: m.metadata_props.iter().map(|p| (p.key.clone(), p.value.clone())).collect(),
        }
    }
    fn has_defaults(&self) -> bool {
        self.model.ir_version.is_some_and(|v| v >= 4)
    }
    fn graph(&self) -> GraphRef<'a> {
        graph(self.graph, self.files)
    }
    fn functions(&self) -> Result<Vec<FunctionSource<'a>>> {
        let files = self.files;
        let one = |f: &'a FunctionProto| {
            let mut attrs: Vec<_> = f.attribute.iter().map(|a| (a.as_str(), None)).collect();
            for a in &f.attribute_proto {
                attrs.push((a.name.as_str(), Some(value(a, files)?)));
            }
            Ok(FunctionSource {
                domain: &f.domain,
                name: &f.name,
                overload: &f.overload,
                inputs: f.input.iter().map(String::as_str).collect(),
                outputs: f.output.iter().map(String::as_str).collect(),
                attrs,
                opsets: opsets(&f.opset_import),
                body: Rc::new(ProtoGraph {
                    name: &f.name,
                    nodes: &f.node,
                    initializers: &[],
                    sparse: &[],
                    inputs: &[],
                    outputs: &[],
                    files,
                }),
            })
        };
        self.model.functions.iter().map(one).collect()
    }
}

#[allow(clippy::indexing_slicing)] // callers give positions below `n_nodes`
impl<'a> GraphSource<'a> for ProtoGraph<'a> {
    fn name(&self) -> &'a str {
        self.name
    }
    fn inputs(&self) -> Result<Vec<SourceValue<'a>>> {
        self.inputs.iter().map(declared).collect()
    }
    fn outputs(&self) -> Result<Vec<SourceValue<'a>>> {
        self.outputs.iter().map(declared).collect()
    }
    fn initializers(&self) -> Vec<&'a str> {
        let sparse = self.sparse.iter().map(|s| s.values.as_ref().map_or("", |v| v.name.as_str()));
        self.initializers.iter().map(|t| t.name.as_str()).chain(sparse).collect()
    }
    fn initializer(&self, i: usize) -> Result<Const> {
        match self.initializers.get(i) {
            Some(t) => constant(t, self.files),
            None => match i.checked_sub(self.initializers.len()).and_then(|i| self.sparse.get(i)) {
                Some(s) => dense(s, self.files),
                None => Err(Diagnostic::new(ErrorKind::Internal, format!("there is no initializer {i}"))),
            },
        }
    }
    fn n_nodes(&self) -> usize {
        self.nodes.len()
    }
    fn node(&self, i: usize) -> SourceNode<'a> {
        let n = &self.nodes[i];
        SourceNode {
            name: &n.name,
            op: &n.op_type,
            domain: if n.domain == "ai.onnx" { "" } else { &n.domain },
            overload: &n.overload,
            inputs: &n.input,
            outputs: &n.output,
        }
    }
    fn attrs(&self, i: usize) -> Result<Vec<(&'a str, SourceAttr<'a>)>> {
        let files = self.files;
        self.nodes[i].attribute.iter().map(|a| Ok((a.name.as_str(), value(a, files)?))).collect()
    }
    fn bodies(&self, i: usize) -> Vec<GraphRef<'a>> {
        self.nodes[i].attribute.iter().filter_map(|a| a.g.as_deref()).map(|g| graph(g, self.files)).collect()
    }
}

fn declared(v: &ValueInfoProto) -> Result<SourceValue<'_>> {
    let ty = v.r#type.as_ref().map_or(Ok(SourceType::Unknown), source_type);
    Ok(SourceValue { name: &v.name, ty: ty.map_err(|e| e.note("value", format!("{:?}", v.name)))? })
}

fn element(n: i32) -> Result<DType> {
    DType::from_onnx(n).ok_or_else(|| {
        Diagnostic::new(ErrorKind::Unsupported, format!("element type number {n} is not known"))
            .help("known element types are 1 to 26 of TensorProto.DataType")
    })
}

fn source_type(t: &TypeProto) -> Result<SourceType<'_>> {
    use type_proto::Value as V;
    Ok(match &t.value {
        None => SourceType::Unknown,
        // An element type of 0 is how exporters write "not known".
        Some(V::TensorType(t)) if t.elem_type == 0 => SourceType::Unknown,
        Some(V::TensorType(t)) => {
            let dims = t.shape.as_ref().map(|s| s.dim.iter().map(dim).collect());
            SourceType::Tensor(element(t.elem_type)?, dims)
        }
        Some(V::SequenceType(s)) => SourceType::Sequence(Box::new(opt_type(&s.elem_type)?)),
        Some(V::OptionalType(s)) => SourceType::Optional(Box::new(opt_type(&s.elem_type)?)),
        Some(V::MapType(m)) => SourceType::Map(element(m.key_type)?, Box::new(opt_type(&m.value_type)?)),
        Some(V::SparseTensorType(_)) => {
            return Err(Diagnostic::new(ErrorKind::Unsupported, "sparse tensors are not supported as values")
                .help("sparse initializers are; declare the value as a dense tensor"));
        }
    })
}

fn opt_type(t: &Option<Box<TypeProto>>) -> Result<SourceType<'_>> {
    t.as_deref().map_or(Ok(SourceType::Unknown), source_type)
}

fn dim(d: &Dimension) -> SourceDim<'_> {
    match &d.value {
        Some(dimension::Value::DimValue(v)) => SourceDim::Known(*v),
        // Exporters write "?" for every extent that they do not know: it names nothing.
        Some(dimension::Value::DimParam(s)) if s.contains(char::is_alphanumeric) => SourceDim::Named(s),
        _ => SourceDim::Unknown,
    }
}

/// A constant for a tensor; raw bytes are slices of the file.
pub(super) fn constant(t: &TensorProto, files: &Files) -> Result<Const> {
    if t.data_location == EXTERNAL {
        let (dtype, shape) = (pb::dtype(t)?, pb::shape(t)?);
        let data = files.external(t, dtype, &shape)?;
        return Ok(Const { dtype, shape: shape.into(), data, name: t.name.clone() });
    }
    let c = Const::from_tensor(t.name.clone(), &pb::read(t)?);
    // A short slice of the mapping would keep pages of the file alive for nothing; the copy is smaller than the handle.
    Ok(match &c.data {
        ConstData::Bytes(b) if b.len() <= 64 => Const { data: ConstData::Bytes(Bytes::copy_from_slice(b)), ..c },
        _ => c,
    })
}

/// The dense form of a sparse tensor.
fn dense(s: &SparseTensorProto, files: &Files) -> Result<Const> {
    let (Some(values), Some(indices)) = (&s.values, &s.indices) else {
        return Err(Diagnostic::new(ErrorKind::Malformed, "a sparse tensor lacks values or indices"));
    };
    let bad = |what: String| Diagnostic::new(ErrorKind::Malformed, format!("sparse tensor {:?} {what}", values.name));
    let shape = pb::shape(&TensorProto { dims: s.dims.clone(), name: values.name.clone(), ..Default::default() })?;
    let (v, at) = (constant(values, files)?.read()?, constant(indices, files)?.read()?);
    let n: usize = shape.iter().product();
    let (Some(size), Some(total)) = (v.dtype().size(), v.dtype().size_bytes(n)) else {
        return Err(bad(format!("has element type {}, which cannot be sparse", v.dtype())));
    };
    if total > MAX_DENSE_BYTES {
        let e = bad(format!("takes {total} bytes when dense; at most {MAX_DENSE_BYTES} are supported"));
        return Err(Diagnostic::new(ErrorKind::Limit, e.message()));
    }
    let linear = match (at.dtype(), at.shape()) {
        (DType::I64, [k]) if *k == v.n_elems() => at.to_i64_vec(),
        (DType::I64, [k, r]) if *k == v.n_elems() && *r == shape.len() => {
            let flat = |ix: &[i64]| {
                ix.iter().zip(&shape).try_fold(0i64, |a, (&i, &d)| {
                    let d = i64::try_from(d).ok()?;
                    (0..d).contains(&i).then_some(())?;
                    a.checked_mul(d)?.checked_add(i)
                })
            };
            let all = at.to_i64_vec();
            let lin: Option<Vec<i64>> =
                if shape.is_empty() { None } else { all.chunks(shape.len()).map(flat).collect() };
            lin.ok_or_else(|| bad("has an index outside its extents".into()))?
        }
        (d, sh) => return Err(bad(format!("has indices {d}{sh:?} for {} values", v.n_elems()))),
    };
    let mut bytes = vec![0u8; total];
    for (element, &i) in v.bytes().chunks(size).zip(&linear) {
        let place = usize::try_from(i).ok().filter(|&i| i < n);
        let i = place.ok_or_else(|| bad(format!("has index {i} but {n} elements")))?;
        let place = bytes.get_mut(i * size..(i + 1) * size).filter(|p| p.len() == element.len());
        place.ok_or_else(|| bad("has values of another size".into()))?.copy_from_slice(element);
    }
    Ok(Const { dtype: v.dtype(), shape: shape.into(), data: ConstData::Bytes(bytes.into()), name: values.name.clone() })
}

fn text(b: &Bytes, name: &str) -> Result<Arc<str>> {
    match std::str::from_utf8(b) {
        Ok(s) => Ok(s.into()),
        Err(_) => Err(Diagnostic::new(ErrorKind::Malformed, format!("attribute {name:?} is a string but not UTF-8"))),
    }
}

/// An attribute's value. Files of the first IR versions have no type field: there the field that is set decides.
fn value<'a>(a: &'a AttributeProto, files: &'a Files) -> Result<SourceAttr<'a>> {
    use AttributeType as T;
    if !a.ref_attr_name.is_empty() {
        return Ok(SourceAttr::Ref(&a.ref_attr_name));
    }
    let broken = |what: &str| {
        Diagnostic::new(
            ErrorKind::Malformed,
            format!("attribute {:?} is declared as {what} but has no such value", a.name),
        )
    };
    let declared = a.r#type.map(T::try_from).transpose().map_err(|_| {
        let n = a.r#type.unwrap_or_default();
        Diagnostic::new(
            ErrorKind::Malformed,
            format!("attribute {:?} has type number {n}, which ONNX does not define", a.name),
        )
    })?;
    let kind = match declared.filter(|&k| k != T::Undefined) {
        Some(k) => k,
        None if a.g.is_some() => T::Graph,
        None if a.t.is_some() => T::Tensor,
        None if a.s.is_some() => T::String,
        None if a.f.is_some() => T::Float,
        None if a.i.is_some() => T::Int,
        None if !a.floats.is_empty() => T::Floats,
        None if !a.strings.is_empty() => T::Strings,
        None => T::Ints,
    };
    Ok(match kind {
        T::Int => SourceAttr::Int(a.i.unwrap_or(0)),
        T::Float => SourceAttr::Float(a.f.unwrap_or(0.0)),
        T::String => SourceAttr::Str(a.s.as_ref().map_or(Ok("".into()), |s| text(s, &a.name))?),
        T::Ints => SourceAttr::Ints(&a.ints),
        T::Floats => SourceAttr::Floats(&a.floats),
        T::Strings => SourceAttr::Strs(a.strings.iter().map(|s| text(s, &a.name)).collect::<Result<_>>()?),
        T::Tensor => SourceAttr::Tensor(constant(a.t.as_deref().ok_or_else(|| broken("a tensor"))?, files)?),
        T::SparseTensor => {
            SourceAttr::Tensor(dense(a.sparse_tensor.as_deref().ok_or_else(|| broken("a sparse tensor"))?, files)?)
        }
        T::Graph => SourceAttr::Graph(graph(a.g.as_deref().ok_or_else(|| broken("a graph"))?, files)),
        T::TypeProto => SourceAttr::Type(source_type(a.tp.as_deref().ok_or_else(|| broken("a type"))?)?),
        T::Tensors => SourceAttr::Other("tensors"),
        T::Graphs => SourceAttr::Other("graphs"),
        T::SparseTensors => SourceAttr::Other("sparse tensors"),
        T::TypeProtos => SourceAttr::Other("types"),
        T::Undefined => SourceAttr::Other("undefined"),
    })
}
