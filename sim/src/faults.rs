//! What goes wrong, how often, and the count of it.

use std::collections::BTreeMap;

use protocol::time::Span;

use crate::options::Level;
use crate::rng::Rng;

/// A link between two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// A call to the API server, one way.
    Api,
    /// A permit request or its answer.
    Permit,
    /// A frame between agent and monitor.
    Monitor,
    /// A page of metrics on its way from the guest to the agent.
    Scrape,
    /// Between controller and runner.
    Runner,
    /// What a watch tells.
    Watch,
}

impl Link {
    const fn fault_names(self) -> [&'static str; 3] {
        match self {
            Self::Api => ["api lost", "api late", "api twice"],
            Self::Permit => ["permit lost", "permit late", "permit twice"],
            Self::Monitor => ["frame lost", "frame late", "frame twice"],
            Self::Scrape => ["scrape lost", "scrape late", "scrape twice"],
            Self::Runner => ["order lost", "order late", "order twice"],
            Self::Watch => ["watch gap", "watch stale", "watch twice"],
        }
    }
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It never arrives.
    Lost,
    /// It arrives after this long.
    After(Span),
    /// It arrives, and once more.
    Twice(Span, Span),
}

impl Delivery {
    /// When it first arrives.
    #[must_use]
    pub fn first(self) -> Option<Span> {
        match self {
            Self::Lost => None,
            Self::After(span) | Self::Twice(span, _) => Some(span),
        }
    }
}

/// Chances in a million, and pauses.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// A message is lost.
    pub lost: u32,
    /// A message is late.
    pub late: u32,
    /// A message arrives twice.
    pub twice: u32,
    /// The API server carries a call out long after its caller gave it up.
    pub stalled: u32,
    /// The API server fails a call with 500 although it may have carried it out.
    pub broken: u32,
    /// A watch stream breaks at a change.
    pub gap: u32,
    /// The API server begins to refuse to resize a pod.
    pub refused: u32,
    /// The longest a late message takes.
    pub latest: Span,
    /// Mean pause between two mischiefs; none if zero.
    pub fault_pause: Span,
}

/// The rates of a level.
#[must_use]
pub fn rates(level: Level) -> Rates {
    let calm = Rates {
        lost: 0,
        late: 0,
        twice: 0,
        stalled: 0,
        broken: 0,
        gap: 0,
        refused: 0,
        latest: Span(0),
        fault_pause: Span(0),
    };
    match level {
        Level::None => calm,
        Level::Light => Rates {
            lost: 2_000,
            late: 10_000,
            twice: 1_000,
            stalled: 300,
            broken: 1_000,
            gap: 200,
            refused: 5_000,
            latest: Span::from_secs(2),
            fault_pause: Span::from_secs(60),
        },
        Level::Heavy => Rates {
            lost: 20_000,
            late: 60_000,
            twice: 10_000,
            stalled: 3_000,
            broken: 10_000,
            gap: 3_000,
            refused: 30_000,
            latest: Span::from_secs(6),
            fault_pause: Span::from_secs(6),
        },
    }
}

/// How often what was done to the world.
#[derive(Debug, Clone, Default)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// Adds one to the count of that name, which begins at 0.
    pub fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_insert(0) += 1;
    }

    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_insert(0) += count;
        }
    }

    /// Names whose counts have risen since `before`.
    pub(crate) fn names_since(&self, before: &Self) -> Vec<&'static str> {
        let risen = self
            .iter()
            .filter(|(name, count)| *count > before.get(name));
        risen.map(|(name, _)| name).collect()
    }

    /// All counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, count)| (*what, *count))
    }

    /// Count of that name; 0 if it never happened.
    #[must_use]
    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

/// Decides over a message.
pub fn delivery(rng: &mut Rng, rates: &Rates, tally: &mut Tally, link: Link) -> Delivery {
    let [lost, late, twice] = link.fault_names();
    let quick = rng.span(Span(200), Span::from_millis(3));
    if rng.chance(rates.lost) {
        tally.count(lost);
        return Delivery::Lost;
    }
    let delay = if rng.chance(rates.late) {
        tally.count(late);
        rng.span(quick, rates.latest)
    } else {
        quick
    };
    if rng.chance(rates.twice) {
        tally.count(twice);
        let more = rng.span(Span(100), rates.latest.max(Span(200)));
        return Delivery::Twice(delay, Span(delay.0 + more.0));
    }
    Delivery::After(delay)
}
