//! Lines of the journal by answers about sets.

use protocol::journal::SetsAnswered;

use super::*;

/// The lines that a core wants written.
fn lines(actions: Vec<Action>) -> Vec<SetsAnswered> {
    let lines = actions.into_iter().filter_map(|action| match action {
        Action::Record(line) => Some(*line),
        _ => None,
    });
    lines.collect()
}

/// Requirement: V05
#[test]
fn v05_answer_about_sets_other_than_the_last_is_a_line_with_its_question() {
    let mut rig = Rig::new(Role::Live);
    rig.answer(&json!({
        "sets": {"web": {"count": 40, "command": "drain"}},
        "kv": {"web": {"mode": "fast"}},
        "nodes": {"want": 5, "why": "load"},
    }));
    let first = lines(rig.run());
    let [line] = &first[..] else {
        panic!("{first:?}")
    };
    let question = &rig.questions[0];
    assert_eq!(line.r#in, question.input.checksum());
    assert_eq!(line.dg, question.digest.short());
    assert_eq!(
        (line.role, &*line.name, &*line.ns),
        (Role::Live, "web", "default")
    );
    assert_eq!((line.nodes, line.why.as_deref()), (Some(5), Some("load")));
    let set = &line.sets["web"];
    assert_eq!((set.has, set.want), (2, 8), "what fits on the node");
    assert_eq!(set.to, Some(8), "ten members come at once");
    assert_eq!(set.command.as_deref(), Some("drain"));
    assert_ne!(set.kv, 0, "values have their checksum");
    assert_eq!(lines(rig.next()), [], "it says the same");
    rig.answer(&json!({"sets": {"web": {"count": 1}}}));
    let other = lines(rig.next());
    let set = &other[0].sets["web"];
    assert_eq!((set.has, set.want, set.to), (8, 1, Some(3)), "five at once");
    assert_eq!((other.len(), set.kv), (1, 0));
}

/// Requirement: V05
#[test]
fn v05_answer_about_sets_that_stays_is_written_again_after_ten_minutes() {
    let mut rig = Rig::new(Role::Shadow);
    rig.answer(&json!({"sets": {"web": {"count": 5}}}));
    let mut written = Vec::new();
    for line in lines(rig.run()) {
        written.push(line.t / SECOND);
    }
    for _ in 0..130 {
        let at = rig.core.poll_deadline().expect("a deadline");
        let new = lines(rig.next());
        assert!(new.iter().all(|line| line.sets["web"].to.is_none()));
        written.extend(new.iter().map(|_| at.0 / SECOND));
    }
    assert_eq!(written, [0, 600, 1200]);
}

/// Requirement: V05, V33
#[test]
fn v05_fault_about_sets_is_a_line_with_its_text() {
    let mut rig = Rig::new(Role::Shadow);
    rig.run();
    rig.shadow = End::Fault(Fault::Output, "sets.web.count: 2.5".into());
    let new = lines(rig.next());
    assert_eq!(new[0].fault, Some(Fault::Output));
    assert_eq!(new[0].note.as_deref(), Some("sets.web.count: 2.5"));
    assert_eq!(new[0].sets.len(), 0);
    assert_eq!(lines(rig.next()), [], "it is the same fault");
    rig.shadow = End::NotAsked("bellows-policy is missing".into());
    assert_eq!(lines(rig.next()), [], "nothing was answered");
}
