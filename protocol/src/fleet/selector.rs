//! Label selectors, by the rules of Kubernetes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Selects guests by their labels. An empty selector selects all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    /// Labels that must have these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further conditions. All must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Expression>,
}

/// A condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expression {
    /// Name of the label.
    pub key: String,
    /// Relation of the label to the values.
    pub operator: Operator,
    /// Values, for the operators that compare.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Relation of a label to values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent or has another value.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl Operator {
    /// Whether the operator compares with values.
    #[must_use]
    pub const fn compares(self) -> bool {
        matches!(self, Self::In | Self::NotIn)
    }
}

impl Selector {
    /// Whether an object with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = self
            .match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        equal && self.match_expressions.iter().all(|one| one.holds(labels))
    }
}

impl Expression {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let is_named = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => is_named,
            Operator::NotIn => !is_named,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: B02
    #[test]
    fn selector_follows_the_rules_of_kubernetes() {
        let labels: BTreeMap<String, String> = [("tier", "gold"), ("zone", "a")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let cases = [
            (r"{}", true),
            (r#"{"matchLabels":{"tier":"gold"}}"#, true),
            (r#"{"matchLabels":{"tier":"gold","zone":"b"}}"#, false),
            (r#"{"matchLabels":{"absent":""}}"#, false),
            (
                r#"{"matchExpressions":[{"key":"zone","operator":"In","values":["a","b"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"zone","operator":"In","values":["b"]}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"absent","operator":"In","values":["a"]}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"zone","operator":"NotIn","values":["a"]}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"absent","operator":"NotIn","values":["a"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"zone","operator":"Exists"}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"zone","operator":"DoesNotExist"}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"absent","operator":"DoesNotExist"}]}"#,
                true,
            ),
        ];
        for (text, expected) in cases {
            let selector: Selector = serde_json::from_str(text).expect(text);
            assert_eq!(selector.matches(&labels), expected, "{text}");
        }
    }
}
