//! Rule 3: what is seen of a name never goes back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::timeline::{Position, Timeline};
use super::{History, Instant, Key, Operation, OperationRecord, Outcome};

/// What one call saw of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// The state at a position.
    At(Position),
    /// The change that made the state at a position.
    Made(Position),
    /// An object, of whatever version.
    Present,
    /// The key has no object.
    Absent,
}

/// Goes over the calls in the order in which they began, with the newest position that an ended
/// call saw. A call that saw no revision gets the first position that fits, so that
/// later calls are bound least.
pub(super) fn order(
    key: Key,
    calls: &[&OperationRecord],
    history: &History,
    timeline: &Timeline,
    found: &mut Vec<String>,
) {
    let mut sights: Vec<(Instant, Instant, Sight)> = calls
        .iter()
        .filter_map(|call| Some((call.began, call.ended, sight(call, timeline)?)))
        .collect();
    sights.extend(history.all_lists().map(|list| {
        let position = match list.objects.get(&key) {
            Some(version) => 2 * version.revision,
            None => gap_before(list.revision, timeline),
        };
        (list.began, list.ended, Sight::At(position))
    }));
    sights.sort_unstable_by_key(|(began, ended, _)| (*began, *ended));
    let mut ended: BinaryHeap<Reverse<(Instant, Position)>> = BinaryHeap::new();
    let mut newest = 0;
    for (began, end, sight) in sights {
        while let Some(Reverse((_, position))) =
            ended.peek().filter(|Reverse((end, _))| *end < began)
        {
            newest = newest.max(*position);
            ended.pop();
        }
        match place(sight, newest, timeline) {
            Some(position) => ended.push(Reverse((end, position))),
            // An object that nobody saw was made and perhaps removed again.
            None if sight == Sight::Present && timeline.unseen_creates > 0 => {}
            None => found.push(format!(
                "object {key} went back: {sight:?} was seen after position {newest}"
            )),
        }
    }
}

/// Where the state is that a call saw, if there is one that is not before `newest`.
fn place(sight: Sight, newest: Position, timeline: &Timeline) -> Option<Position> {
    match sight {
        Sight::At(position) => (position >= newest).then_some(position),
        Sight::Made(position) => (position > newest).then_some(position),
        Sight::Present => timeline.present_from(newest),
        Sight::Absent => timeline.absent_from(newest),
    }
}

fn sight(call: &OperationRecord, timeline: &Timeline) -> Option<Sight> {
    match call.answer {
        Outcome::Is(version) if call.asked == Operation::Get => {
            Some(Sight::At(2 * version.revision))
        }
        Outcome::Is(version) => Some(Sight::Made(2 * version.revision)),
        // Nobody may have seen the life that it ended.
        Outcome::Removed(uid) => Some(Sight::Made(timeline.life(uid)?.free_from()?)),
        Outcome::Absent => Some(Sight::Absent),
        Outcome::Exists | Outcome::Conflict => Some(Sight::Present),
        Outcome::Refused | Outcome::Lost => None,
    }
}

/// The free position that a list of a revision shows.
fn gap_before(revision: u64, timeline: &Timeline) -> Position {
    let life = timeline.life_at(revision);
    life.and_then(|life| life.free_from()).unwrap_or(0)
}
