//! Label and field selectors.

use std::collections::BTreeSet;

use serde_json::Value;

/// Longest selector text accepted.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// One term of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    Absent(String),
}

/// A label selector: all terms must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    terms: Vec<Requirement>,
}

/// A field selector: all terms must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    /// (path, value, wanted equal)
    terms: Vec<(String, String, bool)>,
}

/// Why a selector text is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unable to parse requirement: {0}")]
pub struct SelectorError(String);

impl LabelSelector {
    /// Reads `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    ///
    /// # Errors
    /// Naming the term that is none of these forms.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(SelectorError("selector is too long".to_owned()));
        }
        let terms = split_terms(text)?
            .into_iter()
            .map(parse_term)
            .collect::<Result<_, _>>()?;
        Ok(Self { terms })
    }

    /// Whether the object's labels satisfy every term. Absent labels satisfy `!=` and `notin`.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        self.terms.iter().all(|term| match term {
            Requirement::In(key, values) => label(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|value| !values.contains(value))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
        })
    }

    /// No terms: everything matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

/// Splits at commas outside parentheses.
fn split_terms(text: &str) -> Result<Vec<&str>, SelectorError> {
    let (mut terms, mut start, mut inside) = (Vec::new(), 0, false);
    for (index, character) in text.char_indices() {
        match (character, inside) {
            ('(', false) => inside = true,
            (')', true) => inside = false,
            ('(', true) | (')', false) => {
                return Err(SelectorError(format!(
                    "unexpected {character:?} in {text:?}"
                )));
            }
            (',', false) => {
                terms.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(SelectorError(format!("missing ')' in {text:?}")));
    }
    terms.push(text[start..].trim());
    if terms == [""] {
        return Ok(Vec::new());
    }
    Ok(terms)
}

fn parse_term(term: &str) -> Result<Requirement, SelectorError> {
    let bad = || {
        SelectorError(format!(
            "found {term:?}, expected: '=', '==', '!=', in, notin, a key or !key"
        ))
    };
    if let Some(key) = term.strip_prefix('!') {
        return Ok(Requirement::Absent(key_of(key.trim()).ok_or_else(bad)?));
    }
    if let Some(open) = term.find('(') {
        let list = term[open + 1..].strip_suffix(')').ok_or_else(bad)?;
        let (key, word) = term[..open]
            .trim()
            .rsplit_once(char::is_whitespace)
            .ok_or_else(bad)?;
        let key = key_of(key.trim()).ok_or_else(bad)?;
        let values = list
            .split(',')
            .map(|value| value_of(value.trim()).ok_or_else(bad))
            .collect::<Result<_, _>>()?;
        return match word {
            "in" => Ok(Requirement::In(key, values)),
            "notin" => Ok(Requirement::NotIn(key, values)),
            _ => Err(bad()),
        };
    }
    for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, value)) = term.split_once(operator) {
            let key = key_of(key.trim()).ok_or_else(bad)?;
            let values = BTreeSet::from([value_of(value.trim()).ok_or_else(bad)?]);
            return Ok(if negated {
                Requirement::NotIn(key, values)
            } else {
                Requirement::In(key, values)
            });
        }
    }
    key_of(term).map(Requirement::Exists).ok_or_else(bad)
}

/// A label key: an optional DNS prefix and a name of at most 63 characters.
fn key_of(text: &str) -> Option<String> {
    let (prefix, name) = text.rsplit_once('/').unwrap_or(("", text));
    let fine = !name.is_empty()
        && value_of(name).is_some()
        && prefix.len() <= 253
        && prefix
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    fine.then(|| text.to_owned())
}

/// A label value: at most 63 characters of letters, digits, `-`, `_`, `.`, an alphanumeric one at both ends.
fn value_of(text: &str) -> Option<String> {
    is_label_value(text).then(|| text.to_owned())
}

/// Whether `text` may be the value of a label.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    text.len() <= 63
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && ends(text.as_bytes().first())
        && ends(text.as_bytes().last())
}

/// Whether `text` may be the key of a label or annotation.
#[must_use]
pub fn is_label_key(text: &str) -> bool {
    key_of(text).is_some()
}

impl FieldSelector {
    /// Reads `metadata.name=a,status.phase!=Failed`. `supported` says which paths the kind offers.
    ///
    /// # Errors
    /// Naming the term that is malformed or the path that is not offered.
    pub fn parse(text: &str, supported: impl Fn(&str) -> bool) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for term in text
            .split(',')
            .map(str::trim)
            .filter(|term| !term.is_empty())
        {
            let (path, value, equal) = if let Some((path, value)) = term.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) =
                term.split_once("==").or_else(|| term.split_once('='))
            {
                (path, value, true)
            } else {
                return Err(SelectorError(format!("invalid field selector {term:?}")));
            };
            if !supported(path) {
                return Err(SelectorError(format!("field label not supported: {path}")));
            }
            terms.push((
                path.to_owned(),
                value.replace("\\,", ",").replace("\\=", "="),
                equal,
            ));
        }
        Ok(Self { terms })
    }

    /// Whether every term holds. An absent field reads as the empty string.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|(path, wanted, equal)| {
            let found = path.split('.').try_fold(object, |at, name| at.get(name));
            let same = match found {
                None | Some(Value::Null) => wanted.is_empty(),
                Some(Value::String(text)) => text == wanted,
                Some(Value::Bool(flag)) => wanted == if *flag { "true" } else { "false" },
                Some(Value::Number(number)) => wanted.parse().ok().as_ref() == Some(number),
                Some(_) => false,
            };
            same == *equal
        })
    }

    /// The name every match must have, if the selector says so.
    #[must_use]
    pub fn exact_name(&self) -> Option<&str> {
        let named = |(path, _, equal): &&(String, String, bool)| path == "metadata.name" && *equal;
        self.terms
            .iter()
            .find(named)
            .map(|(_, value, _)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_form_of_label_term_selects() {
        let object = json!({"metadata": {"labels": {"a": "1", "x.y/z": "v"}}});
        for (text, expected) in [
            ("", true),
            ("a", true),
            ("!a", false),
            ("b", false),
            ("!b", true),
            ("a=1", true),
            ("a==1", true),
            ("a=2", false),
            ("a!=1", false),
            ("b!=1", true),
            ("a in (1,2)", true),
            ("a in (2)", false),
            ("a notin (2)", true),
            ("b notin (2)", true),
            ("x.y/z=v, a in (1)", true),
            ("a=1,b", false),
            ("b=", false),
            ("a in (1),x.y/z notin (w,u)", true),
        ] {
            let selector = LabelSelector::parse(text).expect(text);
            assert_eq!(selector.matches(&object), expected, "{text}");
        }
        for text in [
            "a=b=c", "=", "a in 1", "a in (1", "a on (1)", "a,,b", "a)", "é=1", "a=-",
        ] {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn field_terms_select_and_unknown_fields_are_refused() {
        let object = json!({"metadata": {"name": "n"}, "spec": {"nodeName": "w"}, "count": 3});
        let any = |_: &str| true;
        for (text, expected) in [
            ("", true),
            ("metadata.name=n", true),
            ("metadata.name==n", true),
            ("metadata.name!=n", false),
            ("spec.nodeName=", false),
            ("status.phase=", true),
            ("status.phase!=Failed", true),
            ("metadata.name=n,spec.nodeName=w", true),
            ("count=3", true),
        ] {
            let selector = FieldSelector::parse(text, any).expect(text);
            assert_eq!(selector.matches(&object), expected, "{text}");
        }
        assert!(FieldSelector::parse("spec.x=1", |path| path == "metadata.name").is_err());
        assert!(FieldSelector::parse("metadata.name", any).is_err());
    }

    proptest! {
        #[test]
        fn a_term_and_its_opposite_never_agree(key in "[a-c]", value in "[a-c]", labels in prop::collection::btree_map("[a-c]", "[a-c]", 0..3)) {
            let object = json!({"metadata": {"labels": labels}});
            let matches = |text: String| LabelSelector::parse(&text).expect("term").matches(&object);
            prop_assert_ne!(matches(format!("{key}={value}")), matches(format!("{key}!={value}")));
            prop_assert_ne!(matches(format!("{key} in ({value})")), matches(format!("{key} notin ({value})")));
            prop_assert_ne!(matches(key.clone()), matches(format!("!{key}")));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = LabelSelector::parse(&text);
            let _ = FieldSelector::parse(&text, |_| true);
        }
    }
}
