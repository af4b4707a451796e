//! Events on objects, for people.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;

/// Namespace of events on objects without one.
const DEFAULT_NAMESPACE: &str = "default";

/// What an event says. It happened once.
#[derive(Debug)]
pub struct Warning {
    /// The object that it is on.
    pub about: ObjectReference,
    /// Program that creates it.
    pub component: String,
    /// One word in camel case.
    pub reason: String,
    /// Sentences for people.
    pub message: String,
    /// Calendar time, microseconds since 1970.
    pub unix_us: i64,
}

impl Warning {
    /// Namespace in which the event is created.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.about.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
    }

    /// The event's object. The API server completes its name.
    #[must_use]
    pub fn into_event(self) -> Event {
        let at = Timestamp::from_microsecond(self.unix_us).unwrap_or(Timestamp::UNIX_EPOCH);
        Event {
            metadata: ObjectMeta {
                generate_name: Some(format!(
                    "{}.",
                    self.about.name.as_deref().unwrap_or_default()
                )),
                namespace: Some(self.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: self.about,
            reason: Some(self.reason),
            message: Some(self.message),
            type_: Some("Warning".into()),
            count: Some(1),
            first_timestamp: Some(Time(at)),
            last_timestamp: Some(Time(at)),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: None,
            }),
            reporting_component: Some(self.component),
            ..Event::default()
        }
    }
}
