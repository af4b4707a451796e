//! The text of a request body as a value: JSON or YAML.

use serde_json::Value;

use super::error::ApiError;

/// Largest body, as the real server bounds it.
pub const MAX_BODY_BYTES: usize = 3 << 20;

/// Reads JSON, or YAML where it is allowed.
///
/// # Errors
/// 400 for text that does not parse.
pub fn parse(bytes: &[u8], yaml_allowed: bool) -> Result<Value, ApiError> {
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(_) if yaml_allowed => {
            let text = std::str::from_utf8(bytes).map_err(|error| {
                ApiError::bad_request(format!("the body is not UTF-8: {error}"))
            })?;
            serde_saphyr::from_str_with_options(text, yaml()).map_err(|error| {
                ApiError::bad_request(format!("the body is neither JSON nor YAML: {error}"))
            })
        }
        Err(error) => Err(ApiError::bad_request(format!(
            "the object provided is unrecognized: the body is not JSON: {error}"
        ))),
    }
}

/// Aliases repeat what they name, so that a short text can stand for a large value. The value is
/// bounded as the text is.
fn yaml() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_total_scalar_bytes: MAX_BODY_BYTES,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_and_yaml_are_read() {
        assert_eq!(parse(b"{\"a\": 0.25}", false), Ok(json!({"a": 0.25})));
        let yaml = b"a: 0.25\nb: [1, \"2\", true, null]\nc: {d: 250m}\n";
        assert_eq!(
            parse(yaml, true),
            Ok(json!({"a": 0.25, "b": [1, "2", true, null], "c": {"d": "250m"}}))
        );
        assert!(parse(yaml, false).is_err());
        assert!(parse(b"a: [", true).is_err());
    }

    /// Sixty aliases of one mebibyte are a body of one, and a value of sixty.
    #[test]
    fn yaml_that_is_larger_than_a_body_by_its_aliases_is_refused() {
        let text = format!(
            "a: &a {}\nb: [{}]\n",
            "x".repeat(1 << 20),
            ["*a"; 60].join(",")
        );
        assert!(parse(text.as_bytes(), true).is_err());
        let once = format!("a: &a {}\nb: [*a]\n", "x".repeat(1 << 20));
        assert!(parse(once.as_bytes(), true).is_ok());
    }
}
