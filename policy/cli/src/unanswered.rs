//! Replays that cannot say what a recorded time would have been.

use policy_contract::Spec;
use policy_whatif::Questions;
use protocol::policy::Scope;

/// Why this policy cannot be replayed at all.
pub(crate) fn not_recorded(spec: &Spec, file: &str) -> Option<String> {
    (spec.scope == Scope::Set).then(|| {
        format!(
            "error: {file} decides about sets of VMs, and no journal has the questions about sets\n  \
             a record C has an answer and the checksum of its question, without feeds, nodes and the past\n  \
             fix: let it answer beside the version that decides: bellows policy apply FILE --scope set, \
             then bellows policy report NAME"
        )
    })
}

/// Says that a policy gave no valid answer at all. Its figures are those of the built-in goal.
pub(crate) fn no_answer(questions: &Questions) -> Option<String> {
    let faults: u64 = questions.faults.values().sum();
    (questions.asked > 0 && faults == questions.asked).then(|| {
        let kinds = questions.faults.iter();
        let kinds: Vec<String> = kinds.map(|(kind, count)| format!("{count} {kind}")).collect();
        format!(
            "error: the policy answered none of the {} questions: {}\n  \
             its figures are not those of a policy that decides, so it is not judged\n  \
             fix: bellows policy check FILE; a policy that decides about sets of VMs takes --scope set",
            questions.asked,
            kinds.join(", ")
        )
    })
}
