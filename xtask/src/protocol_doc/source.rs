//! What the sources of crate `protocol` say of its types: members, their spelling on the wire, and
//! their documentation.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use syn::{Expr, ExprLit, Fields, GenericArgument, Item, Lit, PathArguments};

use super::spelling::{Serde, doc_of, last_of};

/// Types of other crates, and how JSON writes them.
const FOREIGN: [(&str, &str); 14] = [
    ("bool", "boolean"),
    ("f32", "number"),
    ("f64", "number"),
    ("i32", "whole number"),
    ("i64", "whole number"),
    ("u8", "whole number"),
    ("u16", "whole number"),
    ("u32", "whole number"),
    ("u64", "whole number"),
    ("usize", "whole number"),
    ("String", "string"),
    ("PathBuf", "string"),
    ("SocketAddrV4", "string"),
    ("Value", "any JSON"),
];

/// One file of the crate.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) doc: String,
    pub(super) constants: Vec<Constant>,
    pub(super) types: Vec<Type>,
    /// Types whose spelling on the wire is not understood, and why.
    pub(super) unread: BTreeMap<String, String>,
}

/// A public constant.
#[derive(Debug)]
pub(super) struct Constant {
    pub(super) name: String,
    /// The expression, as the source spells it.
    pub(super) value: String,
    pub(super) doc: String,
}

/// A public type.
#[derive(Debug)]
pub(super) struct Type {
    pub(super) name: String,
    pub(super) doc: String,
    pub(super) shape: Shape,
    /// What function `wire_type` gives for each variant.
    pub(super) wire_types: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(super) enum Shape {
    Object(Vec<Member>),
    Choice {
        /// The member that names the variant.
        tag: Option<String>,
        variants: Vec<Variant>,
    },
    /// A value of its own spelling, which its documentation describes.
    Wrapper,
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) is_optional: bool,
    pub(super) doc: String,
}

/// What a member holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Json(&'static str),
    Type(String),
    List(Box<Self>),
    /// An object whose members have names of the peer's choice.
    Map(Box<Self>),
}

impl Kind {
    /// The named type that it is or lists.
    pub(super) fn type_name(&self) -> Option<String> {
        match self {
            Self::Json(_) => None,
            Self::Type(name) => Some(name.clone()),
            Self::List(of) | Self::Map(of) => of.type_name(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Variant {
    /// The name in Rust.
    pub(super) name: String,
    pub(super) word: String,
    /// Words that this side does not know are read as this variant.
    pub(super) is_rest: bool,
    pub(super) doc: String,
    pub(super) payload: Payload,
}

#[derive(Debug)]
pub(super) enum Payload {
    Nothing,
    Of(Kind),
    Members(Vec<Member>),
}

impl Module {
    pub(super) fn read(text: &str) -> Result<Self> {
        let file = syn::parse_file(text).context("the source does not parse")?;
        let mut module = Self {
            doc: doc_of(&file.attrs),
            constants: Vec::new(),
            types: Vec::new(),
            unread: BTreeMap::new(),
        };
        let mut wire_types: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for item in &file.items {
            match item {
                Item::Const(it) if is_public(&it.vis) => {
                    let name = it.ident.to_string();
                    let value = value_of(text, &name)?;
                    let doc = doc_of(&it.attrs);
                    module.constants.push(Constant { name, value, doc });
                }
                Item::Struct(it) if is_public(&it.vis) => module.add(&it.ident, struct_of(it)),
                Item::Enum(it) if is_public(&it.vis) => module.add(&it.ident, enum_of(it)),
                Item::Impl(it) if it.trait_.is_none() => {
                    if let syn::Type::Path(path) = &*it.self_ty {
                        let name = last_of(&path.path);
                        wire_types.entry(name).or_default().extend(words_of(it));
                    }
                }
                _ => {}
            }
        }
        for of_type in &mut module.types {
            of_type.wire_types = wire_types.remove(&of_type.name).unwrap_or_default();
        }
        Ok(module)
    }

    fn add(&mut self, name: &syn::Ident, read: Result<Type>) {
        match read {
            Ok(of_type) => self.types.push(of_type),
            Err(error) => drop(self.unread.insert(name.to_string(), format!("{error:#}"))),
        }
    }
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

/// The text between the equals sign and the semicolon of a constant.
fn value_of(text: &str, name: &str) -> Result<String> {
    let (_, rest) = text
        .split_once(&format!("\npub const {name}: "))
        .with_context(|| format!("{name} does not begin a line"))?;
    let value = rest.split_once(" =").and_then(|(_, rest)| {
        let end = rest.find(";\n")?;
        Some(rest[..end].split_whitespace().collect::<Vec<_>>().join(" "))
    });
    value.with_context(|| format!("the value of {name} does not end in a line"))
}

fn struct_of(item: &syn::ItemStruct) -> Result<Type> {
    let serde = Serde::of(&item.attrs)?;
    let shape = match &item.fields {
        Fields::Unnamed(_) => Shape::Wrapper,
        fields => Shape::Object(members_of(fields, &serde)?),
    };
    Ok(Type {
        name: item.ident.to_string(),
        doc: doc_of(&item.attrs),
        shape,
        wire_types: BTreeMap::new(),
    })
}

fn enum_of(item: &syn::ItemEnum) -> Result<Type> {
    let serde = Serde::of(&item.attrs)?;
    let variants = item.variants.iter().map(|variant| {
        let own = Serde::of(&variant.attrs)?;
        let payload = match &variant.fields {
            Fields::Unit => Payload::Nothing,
            Fields::Unnamed(fields) => match fields.unnamed.first() {
                Some(field) => Payload::Of(kind_of(&field.ty)?.0),
                None => Payload::Nothing,
            },
            fields => Payload::Members(members_of(fields, &own)?),
        };
        let name = variant.ident.to_string();
        Ok(Variant {
            word: own.rename.unwrap_or_else(|| serde.spell(&name)),
            name,
            is_rest: own.is_other,
            doc: doc_of(&variant.attrs),
            payload,
        })
    });
    Ok(Type {
        name: item.ident.to_string(),
        doc: doc_of(&item.attrs),
        shape: Shape::Choice {
            variants: variants.collect::<Result<_>>()?,
            tag: serde.tag,
        },
        wire_types: BTreeMap::new(),
    })
}

fn members_of(fields: &Fields, of_type: &Serde) -> Result<Vec<Member>> {
    let members = fields.iter().map(|field| {
        let name = field.ident.as_ref().context("a field has no name")?;
        let name = name.to_string();
        let serde = Serde::of(&field.attrs)?;
        let (kind, is_option) = kind_of(&field.ty).with_context(|| format!("member {name}"))?;
        Ok(Member {
            name: serde.rename.unwrap_or_else(|| of_type.spell(&name)),
            kind,
            is_optional: is_option || serde.may_be_absent || of_type.may_be_absent,
            doc: doc_of(&field.attrs),
        })
    });
    members.collect()
}

/// What a Rust type is in JSON, and whether it is an `Option`.
fn kind_of(ty: &syn::Type) -> Result<(Kind, bool)> {
    let syn::Type::Path(path) = ty else {
        anyhow::bail!("a type that is no path");
    };
    let last = path.path.segments.last().context("a type without a name")?;
    let name = last.ident.to_string();
    let argument = || {
        let PathArguments::AngleBracketed(arguments) = &last.arguments else {
            anyhow::bail!("{name} of nothing");
        };
        match arguments.args.last() {
            Some(GenericArgument::Type(ty)) => kind_of(ty),
            _ => anyhow::bail!("{name} of no type"),
        }
    };
    Ok(match name.as_str() {
        "Option" => (argument()?.0, true),
        "Box" => argument()?,
        "Vec" => (Kind::List(Box::new(argument()?.0)), false),
        "BTreeMap" => (Kind::Map(Box::new(argument()?.0)), false),
        _ => match FOREIGN.iter().find(|(foreign, _)| *foreign == name) {
            Some(&(_, json)) => (Kind::Json(json), false),
            None => (Kind::Type(name), false),
        },
    })
}

/// The string literals of a function `wire_type`, by variant.
fn words_of(item: &syn::ItemImpl) -> BTreeMap<String, String> {
    let mut words = BTreeMap::new();
    for part in &item.items {
        let syn::ImplItem::Fn(function) = part else {
            continue;
        };
        let Some(syn::Stmt::Expr(Expr::Match(choice), _)) = function.block.stmts.first() else {
            continue;
        };
        if function.sig.ident != "wire_type" {
            continue;
        }
        for arm in &choice.arms {
            let variant = match &arm.pat {
                syn::Pat::Struct(pattern) => last_of(&pattern.path),
                syn::Pat::TupleStruct(pattern) => last_of(&pattern.path),
                syn::Pat::Path(pattern) => last_of(&pattern.path),
                _ => continue,
            };
            if let Expr::Lit(ExprLit {
                lit: Lit::Str(word),
                ..
            }) = &*arm.body
            {
                words.insert(variant, word.value());
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_their_wire_name_type_and_doc() {
        let text = r#"//! Head.

/// Port of the server. Source: docs/compatibility/agent.md.
pub const PORT: u16 = 7;

/// Request of an agent at [`PORT`].
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The newest permit of the VM (docs/compatibility/agent.md §1).
    #[serde(default)]
    pub last_permit: Option<Size>,
    /// Names of all VMs of the agent.
    #[serde(rename = "n")]
    pub names: Vec<String>,
    /// Sizes of VMs.
    pub sizes: BTreeMap<String, Size>,
}

pub enum Body {
    A { x: u64 },
    B(Box<Size>),
    C(Other),
}

impl Body {
    pub const fn wire_type(&self) -> &'static str {
        match self {
            Self::A { .. } => "Alpha",
            Self::B(_) => "Beta",
            Self::C(other) => other.wire_type(),
        }
    }
}
"#;
        let module = Module::read(text).expect("parses");
        assert_eq!(module.doc, "Head.");
        let port = &module.constants[0];
        assert_eq!((&*port.value, &*port.doc), ("7", "Port of the server."));
        let Shape::Object(members) = &module.types[0].shape else {
            panic!("{:?}", module.types[0])
        };
        let [permit, names, sizes] = &members[..] else {
            panic!("{members:?}")
        };
        assert_eq!((&*permit.name, permit.is_optional), ("lastPermit", true));
        assert_eq!(permit.kind, Kind::Type("Size".to_owned()));
        assert_eq!(
            (&*permit.doc, &*module.types[0].doc),
            (
                "The newest permit of the VM.",
                "Request of an agent at `PORT`."
            )
        );
        assert_eq!((&*names.name, names.is_optional), ("n", false));
        assert_eq!(names.kind, Kind::List(Box::new(Kind::Json("string"))));
        let size = Kind::Type("Size".to_owned());
        assert_eq!(sizes.kind, Kind::Map(Box::new(size)));
        let words = &module.types[1].wire_types;
        assert_eq!(words.get("A").map(String::as_str), Some("Alpha"));
        assert_eq!(words.len(), 2, "{words:?}");
    }

    #[test]
    fn a_type_with_a_setting_that_is_not_described_is_not_read() {
        let text = "pub struct X {\n    #[serde(flatten)]\n    pub y: u64,\n}\n";
        let module = Module::read(text).expect("parses");
        assert!(module.types.is_empty(), "{module:?}");
        assert!(module.unread["X"].contains("serde(flatten)"), "{module:?}");
    }
}
