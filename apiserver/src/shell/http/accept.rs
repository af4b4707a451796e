//! Which form of answer a client wants.

use axum::http::{HeaderMap, header};

use super::output::{Output, Shape};
use crate::core::error::{ApiError, Reason};

/// Most alternatives looked at.
const MAX_ALTERNATIVES: usize = 32;

/// A parsed `Accept` header, in the client's order.
#[derive(Debug, Clone, Default)]
pub(super) struct Accept {
    alternatives: Vec<Alternative>,
}

#[derive(Debug, Clone, Default)]
struct Alternative {
    media_type: String,
    transform: String,
    group: String,
    version: String,
}

impl Accept {
    pub(super) fn parse(headers: &HeaderMap) -> Self {
        let texts = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let parts = texts
            .flat_map(|text| text.split(','))
            .take(MAX_ALTERNATIVES);
        Self {
            alternatives: parts.map(Alternative::parse).collect(),
        }
    }

    /// The first alternative that can be served.
    ///
    /// # Errors
    /// 406 when there is none (a client that only takes protobuf, for example).
    pub(super) fn output(&self) -> Result<Output, ApiError> {
        if self.alternatives.is_empty() {
            return Ok(Output::default());
        }
        self.alternatives.iter().find_map(Alternative::output).ok_or_else(|| {
            ApiError::new(
                Reason::NotAcceptable,
                "only the following media types are accepted: application/json, application/yaml",
            )
        })
    }

    /// Whether the aggregated form of discovery is wanted before the plain one.
    pub(super) fn wants_aggregated_discovery(&self) -> bool {
        let first = self
            .alternatives
            .iter()
            .find(|one| one.is_json() && (one.transform.is_empty() || one.is_discovery()));
        first.is_some_and(Alternative::is_discovery)
    }
}

impl Alternative {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
        let mut alternative = Self {
            media_type,
            ..Self::default()
        };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim() {
                "as" => value.trim().clone_into(&mut alternative.transform),
                "g" => value.trim().clone_into(&mut alternative.group),
                "v" => value.trim().clone_into(&mut alternative.version),
                _ => {}
            }
        }
        alternative
    }

    fn is_json(&self) -> bool {
        matches!(
            self.media_type.as_str(),
            "application/json" | "*/*" | "application/*"
        )
    }

    fn is_discovery(&self) -> bool {
        self.transform == "APIGroupDiscoveryList" && self.version == "v2"
    }

    fn output(&self) -> Option<Output> {
        let yaml = matches!(
            self.media_type.as_str(),
            "application/yaml" | "application/x-yaml"
        );
        if !yaml && !self.is_json() {
            return None;
        }
        let shape = match self.transform.as_str() {
            "" => Shape::Object,
            "Table" if self.group == "meta.k8s.io" => Shape::Table,
            "PartialObjectMetadata" | "PartialObjectMetadataList"
                if self.group == "meta.k8s.io" =>
            {
                Shape::Metadata
            }
            _ => return None,
        };
        Some(Output { shape, yaml })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(text: &str) -> Option<(Shape, bool)> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, text.parse().expect("header"));
        Accept::parse(&headers)
            .output()
            .ok()
            .map(|output| (output.shape, output.yaml))
    }

    #[test]
    fn the_first_form_we_have_is_taken() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(output(table), Some((Shape::Table, false)));
        assert_eq!(output("application/json"), Some((Shape::Object, false)));
        assert_eq!(output("*/*"), Some((Shape::Object, false)));
        assert_eq!(output("application/yaml"), Some((Shape::Object, true)));
        assert_eq!(
            output("application/vnd.kubernetes.protobuf,application/json"),
            Some((Shape::Object, false))
        );
        assert_eq!(output("application/vnd.kubernetes.protobuf"), None);
        assert_eq!(
            output("application/json;as=Strange;v=v1;g=meta.k8s.io"),
            None
        );
        let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(output(metadata), Some((Shape::Metadata, false)));
        assert_eq!(
            output("application/json;stream=watch"),
            Some((Shape::Object, false))
        );
    }
}
