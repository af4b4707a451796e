//! Label and field selectors.

use std::collections::BTreeSet;
use std::fmt;

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

    /// Whether the selector has no terms and matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            let list = |values: &BTreeSet<String>| {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                values.join(",")
            };
            match term {
                Requirement::In(key, values) => write!(f, "{key} in ({})", list(values)),
                Requirement::NotIn(key, values) => write!(f, "{key} notin ({})", list(values)),
                Requirement::Exists(key) => f.write_str(key),
                Requirement::Absent(key) => write!(f, "!{key}"),
            }?;
        }
        Ok(())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (path, value, equal)) in self.terms.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            let operator = if *equal { "=" } else { "!=" };
            write!(f, "{path}{operator}")?;
            for character in value.chars() {
                if matches!(character, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{character}")?;
            }
        }
        Ok(())
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

/// A label value: at most 63 characters of letters, digits, `-`, `_`, `.`, an alphanumeric one at
/// both ends.
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

/// Splits at commas that no backslash escapes.
fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (index, character) in text.char_indices() {
        if character == ',' && !escaped {
            terms.push(text[start..index].trim());
            start = index + 1;
        }
        escaped = character == '\\' && !escaped;
    }
    terms.push(text[start..].trim());
    terms
}

/// The value of a field term: `\\`, `\,` and `\=` stand for the second character, and neither `,`
/// nor `=` for itself.
fn unescaped(text: &str) -> Option<String> {
    let (mut value, mut characters) = (String::new(), text.chars());
    while let Some(character) = characters.next() {
        value.push(match character {
            '\\' => characters
                .next()
                .filter(|next| matches!(next, '\\' | ',' | '='))?,
            ',' | '=' => return None,
            other => other,
        });
    }
    Some(value)
}

impl FieldSelector {
    /// Reads `metadata.name=a,status.phase!=Failed`. `supported` says which paths the kind offers.
    ///
    /// # Errors
    /// Naming the term that is malformed or the path that is not offered.
    pub fn parse(text: &str, supported: impl Fn(&str) -> bool) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for term in split_unescaped(text)
            .into_iter()
            .filter(|term| !term.is_empty())
        {
            let bad = || SelectorError(format!("invalid field selector {term:?}"));
            let at = term.find(['!', '=']).ok_or_else(bad)?;
            let (path, rest) = term.split_at(at);
            let (value, equal) = if let Some(value) = rest.strip_prefix("!=") {
                (value, false)
            } else if let Some(value) = rest.strip_prefix("==").or(rest.strip_prefix('=')) {
                (value, true)
            } else {
                return Err(bad());
            };
            if !supported(path) {
                return Err(SelectorError(format!("field label not supported: {path}")));
            }
            let value = unescaped(value).ok_or_else(bad)?;
            terms.push((path.to_owned(), value, equal));
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
        let object = json!({"metadata": {"name": "n"}, "spec": {"nodeName": "w"}, "count": 3, "odd": r"a,b=c\"});
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
            (r"odd=a\,b\=c\\,metadata.name=n", true),
        ] {
            let selector = FieldSelector::parse(text, any).expect(text);
            assert_eq!(selector.matches(&object), expected, "{text}");
        }
        assert!(FieldSelector::parse("spec.x=1", |path| path == "metadata.name").is_err());
        for text in [
            "metadata.name",
            "metadata.name=a=b",
            r"metadata.name=a\",
            r"metadata.name=\n",
        ] {
            assert!(FieldSelector::parse(text, any).is_err(), "{text}");
        }
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
