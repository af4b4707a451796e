//! Properties of the readers of requests and files, as bodies for the coverage-guided fuzzer of
//! `fuzz/` and for property tests.

#![expect(
    clippy::missing_panics_doc,
    reason = "to panic is what this is for: a panic is a finding"
)]

use crate::core::elf;
use crate::core::record::Verb;
use crate::core::request;
use crate::core::trial::{ReturnNote, Trial, is_token};

/// A path, a query and a body, on a line each. What is read holds the rules of its members, and a
/// trial or note reads back as it was written.
pub fn part_request(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (path, query, body) = (line(), line(), line());
    let verb = request::path(path).map_or(Verb::Try, |(part, verb)| {
        assert!(path.contains(part.as_str()));
        verb
    });
    match request::bring(query) {
        Ok(bring) => {
            assert!(is_token(&bring.token) && bring.sha256.len() == 64);
            assert!(!bring.version.contains(char::is_whitespace));
        }
        Err(refusal) => assert_eq!(refusal.status(), 400),
    }
    match request::order(verb, body.as_bytes()) {
        Ok(order) => assert!(is_token(&order.token)),
        Err(refusal) => assert_eq!(refusal.status(), 400),
    }
    if let Some(trial) = Trial::parse(body) {
        assert_eq!(Trial::parse(&trial.to_string()), Some(trial));
    }
    if let Some(note) = ReturnNote::parse(body) {
        assert_eq!(ReturnNote::parse(&note.to_string()), Some(note));
    }
}

/// The head of a program. A refusal is a sentence, and an accepted head is an ELF file.
pub fn part_program(data: &[u8]) {
    match elf::check(data, elf::MACHINE) {
        Ok(()) => assert!(data.starts_with(b"\x7fELF")),
        Err(reason) => assert!(!reason.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_seed_of_parts_holds() {
        test_seeds::hold(&[
            ("part_request", part_request),
            ("part_program", part_program),
        ]);
    }

    proptest! {
        #[test]
        fn requests_hold(
            path in "(/v1/parts/)?(monitor|guestd|sshd|\\.\\.)?(/try|/keep|/back|/x)?",
            query in "((sha256|version|token|epoch)=[0-9a-f.%+]{0,66}&?){0,5}",
            body in r#"(\{"token":"[a-z0-9 /]{0,6}"(,"epoch":-?[0-9]{1,20})?(,"seconds":[0-9]{1,4})?\}?)|([a-z0-9]{0,4} [0-9]{0,4} (a|b|image|c))"#,
        ) {
            part_request(format!("{path}\n{query}\n{body}").as_bytes());
        }

        #[test]
        fn heads_of_programs_hold(
            mut head in prop::collection::vec(any::<u8>(), 0..256),
            is_elf in any::<bool>(),
        ) {
            if is_elf && head.len() > 64 {
                head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
                head[16..20].copy_from_slice(&[2, 0, 62, 0]);
            }
            part_program(&head);
        }
    }
}
