//! Renders a metrics page in the format that its reader requests.
//!
//! Registries write OpenMetrics, where the samples of a counter end in `_total`. Readers that ask
//! for OpenMetrics get that. All others get the Prometheus text format 0.0.4, as the deployed
//! programs serve it.
//!
//! The two differ in a family's name. OpenMetrics names a counter without `_total`, the text
//! format with it. Some counters of deployed programs have names without `_total`; see
//! [`PlainCounter`]. OpenMetrics has no such counters, so they are of unknown type there.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;

/// Last line of a registry's text.
const END: &str = "# EOF";

/// Text format of a metrics page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    Text,
}

impl Format {
    /// Format that a request's headers select.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut accepted = headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok());
        if accepted.any(|value| value.contains("application/openmetrics-text")) {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The page in this format, from the text of registries.
    pub(crate) fn render(self, written: &str) -> String {
        let mut page = String::with_capacity(written.len());
        let mut lines = written.lines().peekable();
        while let Some(line) = lines.next() {
            let Some(comment) = line.strip_prefix("# ") else {
                push(&mut page, &[line]);
                continue;
            };
            if line == END {
                if self == Self::OpenMetrics {
                    push(&mut page, &[END]);
                }
                continue;
            }
            let mut head = Head::of(comment);
            // Help, type and unit stand right before the samples of their family.
            while let Some(comment) = lines.peek().and_then(|line| line.strip_prefix("# ")) {
                if !head.takes(comment) {
                    break;
                }
                lines.next();
            }
            let sample = lines.peek().filter(|line| !line.starts_with('#'));
            head.write(self, sample.copied(), &mut page);
        }
        page
    }
}

/// Comment lines of a family.
#[derive(Debug, Default)]
struct Head<'a> {
    name: &'a str,
    help: Option<&'a str>,
    kind: &'a str,
    unit: Option<&'a str>,
}

impl<'a> Head<'a> {
    fn of(comment: &'a str) -> Self {
        let mut head = Self::default();
        head.takes(comment);
        head
    }

    /// Takes `HELP name text`, `TYPE name kind` or `UNIT name unit` of this family.
    fn takes(&mut self, comment: &'a str) -> bool {
        let mut words = comment.splitn(3, ' ');
        let (Some(what), Some(name)) = (words.next(), words.next()) else {
            return false;
        };
        if !self.name.is_empty() && name != self.name {
            return false;
        }
        let value = words.next().unwrap_or_default();
        match what {
            "HELP" => self.help = Some(value),
            "TYPE" => self.kind = value,
            "UNIT" => self.unit = Some(value),
            _ => return false,
        }
        self.name = name;
        true
    }

    fn write(&self, format: Format, sample: Option<&str>, page: &mut String) {
        let sample = sample.and_then(|line| line.split(['{', ' ']).next());
        let has_plain_name = sample == Some(self.name);
        let (suffix, kind) = match (format, self.kind) {
            (Format::OpenMetrics, "counter") if has_plain_name => ("", "unknown"),
            (Format::Text, "counter") if !has_plain_name => ("_total", "counter"),
            (Format::Text, "info") => ("_info", "gauge"),
            (Format::Text, "unknown") => ("", "untyped"),
            (_, kind) => ("", kind),
        };
        if let Some(help) = self.help {
            push(page, &["# HELP ", self.name, suffix, " ", help]);
        }
        if !kind.is_empty() {
            push(page, &["# TYPE ", self.name, suffix, " ", kind]);
        }
        if let Some(unit) = self.unit.filter(|_| format == Format::OpenMetrics) {
            push(page, &["# UNIT ", self.name, suffix, " ", unit]);
        }
    }
}

/// Appends a line made of `parts`.
fn push(page: &mut String, parts: &[&str]) {
    for part in parts {
        page.push_str(part);
    }
    page.push('\n');
}

/// A counter whose samples have its registered name, without `_total`.
#[derive(Debug, Clone, Default)]
pub struct PlainCounter(Counter);

impl PlainCounter {
    /// Adds one to the counter.
    pub fn inc(&self) {
        self.0.inc();
    }

    /// Present value of the counter.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

impl EncodeMetric for PlainCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        // The encoder of gauges adds nothing to the name.
        encoder.encode_gauge(&self.get())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    fn written() -> String {
        let mut registry = Registry::with_prefix("daemon");
        let requests: Counter = Counter::default();
        requests.inc();
        registry.register("requests", "Requests", requests);
        let starts = PlainCounter::default();
        starts.inc();
        registry.register("starts", "Starts", starts);
        let memory: Gauge = Gauge::default();
        registry.register_with_unit("memory", "Memory", Unit::Bytes, memory);
        registry.register("took", "Time", Histogram::new([1.0]));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes all");
        text
    }

    #[test]
    fn text_format_names_counters_as_their_samples() {
        assert_eq!(
            Format::Text.render(&written()),
            "# HELP daemon_requests_total Requests.\n\
             # TYPE daemon_requests_total counter\n\
             daemon_requests_total 1\n\
             # HELP daemon_starts Starts.\n\
             # TYPE daemon_starts counter\n\
             daemon_starts 1\n\
             # HELP daemon_memory_bytes Memory.\n\
             # TYPE daemon_memory_bytes gauge\n\
             daemon_memory_bytes 0\n\
             # HELP daemon_took Time.\n\
             # TYPE daemon_took histogram\n\
             daemon_took_sum 0.0\n\
             daemon_took_count 0\n\
             daemon_took_bucket{le=\"1.0\"} 0\n\
             daemon_took_bucket{le=\"+Inf\"} 0\n"
        );
    }

    #[test]
    fn openmetrics_equals_the_registry_except_for_plain_counters() {
        let written = written();
        let typed = "# TYPE daemon_starts counter";
        assert_eq!(written.matches(typed).count(), 1, "{written}");
        let expected = written.replace(typed, "# TYPE daemon_starts unknown");
        assert_eq!(Format::OpenMetrics.render(&written), expected);
    }

    #[test]
    fn format_is_openmetrics_only_if_it_is_accepted() {
        let of = |accepted: &[&str]| {
            let values = accepted.iter().map(|value| value.parse().expect("a value"));
            Format::of(&values.map(|value| (ACCEPT, value)).collect())
        };
        assert_eq!(of(&[]), Format::Text);
        assert_eq!(of(&["*/*"]), Format::Text);
        assert_eq!(of(&["text/plain;version=0.0.4"]), Format::Text);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.5";
        assert_eq!(of(&[prometheus]), Format::OpenMetrics);
        assert_eq!(of(&["*/*", prometheus]), Format::OpenMetrics);
    }
}
