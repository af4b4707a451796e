//! Forms that the server has made. An order is taken from one of them only, and once.
//!
//! A form has a key, by which the same order is known again, and a token. Both are random, belong
//! to one path and come back with the order. The key of an order that was carried out gives its
//! first answer again, so a page that is loaded twice does nothing twice.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use daemon_kit::bearer::{self, Expected};

use crate::fail::Outcome;

/// Most forms that are remembered. A new one takes the place of the oldest.
const MOST: usize = 512;
/// Time in which a form may be sent.
const LIFETIME: Duration = Duration::from_secs(3600);

/// Sentences about an order that was carried out, or why it was not.
pub(super) type OrderOutcome = Outcome<Vec<String>>;

struct Form {
    key: String,
    token: Expected,
    path: String,
    made: Instant,
    answer: Option<OrderOutcome>,
}

/// Hidden fields of a form.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    pub(super) key: String,
    pub(super) token: String,
}

/// What a sent form is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// To be carried out now.
    First,
    /// Carried out before.
    Again(OrderOutcome),
    /// Not a form of this server for this path, or too old.
    Stale,
}

#[derive(Default)]
pub(super) struct Forms(Mutex<VecDeque<Form>>);

impl Forms {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Form>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a form for a path.
    pub(super) fn make(&self, path: &str) -> Fields {
        let fields = Fields {
            key: bearer::random(),
            token: bearer::random(),
        };
        let mut forms = self.lock();
        if forms.len() == MOST {
            forms.pop_front();
        }
        forms.push_back(Form {
            key: fields.key.clone(),
            token: Expected::new(&fields.token),
            path: path.to_owned(),
            made: Instant::now(),
            answer: None,
        });
        fields
    }

    /// Looks up a form that was sent at `now`.
    pub(super) fn sent(&self, path: &str, fields: &Fields, now: Instant) -> Sent {
        let forms = self.lock();
        let mut known = forms.iter().filter(|form| form.key == fields.key);
        let form = known.find(|form| form.path == path && form.token.is(fields.token.as_bytes()));
        match form {
            None => Sent::Stale,
            Some(form) => match &form.answer {
                Some(answer) => Sent::Again(answer.clone()),
                None if now.duration_since(form.made) > LIFETIME => Sent::Stale,
                None => Sent::First,
            },
        }
    }

    /// Path and answer of a form that was sent.
    pub(super) fn answer(&self, key: &str) -> Option<(String, OrderOutcome)> {
        let forms = self.lock();
        let form = forms.iter().find(|form| form.key == key)?;
        Some((form.path.clone(), form.answer.clone()?))
    }

    /// Remembers what came of a form.
    pub(super) fn answered(&self, key: &str, answer: &OrderOutcome) {
        let mut forms = self.lock();
        if let Some(form) = forms.iter_mut().find(|form| form.key == key) {
            form.answer = Some(answer.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: V35
    #[test]
    fn form_is_taken_once_at_its_own_path_within_its_time() {
        let forms = Forms::default();
        let fields = forms.make("/policies/db/promote");
        let now = Instant::now();
        let sent = |path: &str, fields: &Fields| forms.sent(path, fields, now);
        assert_eq!(sent("/policies/db/promote", &fields), Sent::First);
        assert_eq!(sent("/policies/db/demote", &fields), Sent::Stale);
        let mut wrong = fields.clone();
        wrong.token.clear();
        assert_eq!(sent("/policies/db/promote", &wrong), Sent::Stale);
        let late = now + LIFETIME + Duration::from_secs(1);
        let old = forms.sent("/policies/db/promote", &fields, late);
        assert_eq!(old, Sent::Stale);
        let answer: OrderOutcome = Ok(vec!["done".into()]);
        forms.answered(&fields.key, &answer);
        let again = forms.sent("/policies/db/promote", &fields, late);
        assert_eq!(again, Sent::Again(answer));
    }

    #[test]
    fn oldest_form_goes_first() {
        let forms = Forms::default();
        let first = forms.make("/a");
        for _ in 0..MOST {
            forms.make("/b");
        }
        assert_eq!(forms.sent("/a", &first, Instant::now()), Sent::Stale);
        assert_eq!(forms.lock().len(), MOST);
    }
}
