//! Do guests fare worse with the new release? A comparison with guests of the release before.
//!
//! * No data is unknown, never good and never bad.
//! * A counter that falls begins a new window: what lies between counts for nothing.
//! * The arithmetic is of integers, so the same figures give the same end everywhere.

use protocol::fleet::Judge;

pub mod exact;

/// Fewest guests of an environment for statistics.
pub const LEAST_MATCHES: u32 = 8;
/// Looks of a bake at the rates: one each quarter, up to three times its length.
pub const LOOKS: u32 = 12;
/// Rates that are tested at each look.
const RATES: u32 = 4;
/// Times the median of a group beyond which a figure is an outlier.
const OUTLIER: u64 = 20;
/// Longest time without the agent's link, seconds.
const LOST_LINK_SECONDS: u64 = 60;
/// Fewest resizes of each side for a comparison.
const LEAST_RESIZES: usize = 20;
/// Most memory of a part's process.
const RESIDENT_BYTES: u64 = 16 << 20;

/// Counters of a guest at a time, as its pages show them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// Seconds since any origin.
    pub at: u64,
    /// OOM kills since the counter began.
    pub oom_kills: u64,
    /// Refusals of a size because of pressure.
    pub refusals: u64,
    /// Seconds in which all tasks waited for memory.
    pub full_seconds: u64,
    /// Starts of the part's process.
    pub starts: u64,
    /// Whether the node had memory left.
    pub node_has_room: bool,
    /// Whether the agent is connected.
    pub agent_connected: bool,
    /// Memory of the part's process.
    pub resident_bytes: u64,
}

/// What a guest went through since its window began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readings {
    /// Time with figures.
    pub seconds: u64,
    /// Processes that the kernel ended for lack of memory.
    pub oom_kills: u64,
    /// OOM kills while the node had memory left.
    pub kills_with_room: u64,
    /// Refusals of a size because of pressure.
    pub refusals: u64,
    /// Looks between which tasks waited for memory for a second or more.
    pub full_looks: u64,
    /// Losses of the agent's link.
    pub lost_links: u64,
    /// Time of the present or the longest loss, seconds.
    pub longest_loss: u64,
    /// Memory of the part's process at the last look.
    pub resident_bytes: u64,
    /// Durations of resizes, milliseconds.
    pub resize_millis: Vec<u32>,
    last: Option<Sample>,
    lost_since: Option<u64>,
}

impl Readings {
    /// Adds what happened since the sample before.
    pub fn add(&mut self, sample: Sample) {
        let before = self.last.replace(sample);
        self.resident_bytes = sample.resident_bytes;
        let Some(before) = before else { return };
        let has_fallen = sample.at < before.at
            || sample.oom_kills < before.oom_kills
            || sample.refusals < before.refusals
            || sample.full_seconds < before.full_seconds
            || sample.starts < before.starts;
        if has_fallen {
            self.lost_since = None;
            return;
        }
        let kills = sample.oom_kills - before.oom_kills;
        self.seconds += sample.at - before.at;
        self.oom_kills += kills;
        self.kills_with_room += if before.node_has_room { kills } else { 0 };
        self.refusals += sample.refusals - before.refusals;
        self.full_looks += u64::from(sample.full_seconds > before.full_seconds);
        if sample.agent_connected {
            self.lost_since = None;
            return;
        }
        if before.agent_connected {
            self.lost_links += 1;
        }
        let since = *self.lost_since.get_or_insert(before.at);
        self.longest_loss = self.longest_loss.max(sample.at - since);
    }
}

/// A figure of a guest.
type Counter = fn(&Readings) -> u64;

/// A bake, as the judge looks at it.
#[derive(Debug, Clone, Copy)]
pub struct Bake<'a> {
    /// Guests that were changed.
    pub changed: &'a [&'a Readings],
    /// Guests of the release before.
    pub control: &'a [&'a Readings],
    /// All guests of the environment.
    pub matches: u32,
    /// Time since the bake began, seconds.
    pub baked: u64,
    /// Length of the bake, seconds.
    pub bake_seconds: u64,
    /// Whether the rates are tested now. Each test spends a share of the error.
    pub is_look: bool,
    /// Bakes of the deployment, which share the error.
    pub bakes: u32,
}

/// What the judge says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// The release does harm. The text has the figures.
    Halt(String),
    /// Nothing speaks against it.
    Pass,
    /// More time is needed.
    Wait(String),
    /// Time is up, and there are too few figures.
    Inconclusive(String),
}

/// Judges a bake.
#[must_use]
pub fn judge(bake: &Bake<'_>, limits: &Judge) -> Judgement {
    if let Some(harm) = harm(bake.changed, bake.control, limits) {
        return Judgement::Halt(harm);
    }
    if let Some(harm) = harm(bake.control, &[], limits) {
        let text = format!("guests of the release before are unwell: {harm}");
        return if bake.baked >= bake.bake_seconds.saturating_mul(3) {
            Judgement::Inconclusive(text)
        } else {
            Judgement::Wait(text)
        };
    }
    let has_statistics = bake.matches >= LEAST_MATCHES;
    if has_statistics
        && bake.is_look
        && let Some(harm) = worse_rate(bake, limits)
    {
        return Judgement::Halt(harm);
    }
    if has_statistics && let Some(harm) = slower(bake, limits) {
        return Judgement::Halt(harm);
    }
    let minutes = seconds(bake.changed) / 60;
    let resizes: usize = bake.changed.iter().map(|one| one.resize_millis.len()).sum();
    let is_enough = minutes >= u64::from(limits.guest_minutes) && resizes > 0;
    let figures = format!("{minutes} guest-minutes and {resizes} resizes");
    if bake.baked >= bake.bake_seconds && is_enough {
        Judgement::Pass
    } else if bake.baked >= bake.bake_seconds.saturating_mul(3) {
        let least = limits.guest_minutes;
        Judgement::Inconclusive(format!("{figures} are too few: {least} and 1 are needed"))
    } else {
        Judgement::Wait(figures)
    }
}

/// Harm that needs neither statistics nor guests to compare with.
#[must_use]
pub fn sure_harm(changed: &[&Readings], limits: &Judge) -> Option<String> {
    harm(changed, &[], limits)
}

fn seconds(guests: &[&Readings]) -> u64 {
    guests.iter().map(|one| one.seconds).sum()
}

/// Harm that needs no statistics.
fn harm(changed: &[&Readings], control: &[&Readings], limits: &Judge) -> Option<String> {
    let kills: u64 = changed.iter().map(|one| one.kills_with_room).sum();
    let control_kills: u64 = control.iter().map(|one| one.oom_kills).sum();
    let is_comparable = control_kills == 0 && seconds(control) >= seconds(changed);
    if kills >= u64::from(limits.oom_kills) && (is_comparable || control.is_empty()) {
        return Some(format!("{kills} OOM kills although the node had memory"));
    }
    let is_lost = |one: &&&Readings| one.longest_loss > LOST_LINK_SECONDS;
    let lost = changed.iter().filter(is_lost).count();
    if lost > 1 && lost * 100 > changed.len() * to_usize(limits.lost_links_percent) {
        let all = changed.len();
        return Some(format!(
            "{lost} of {all} guests lost the agent's link for over a minute"
        ));
    }
    let large = changed
        .iter()
        .filter(|one| one.resident_bytes > RESIDENT_BYTES);
    let large = large.count();
    (large > 1 || (large == 1 && changed.len() == 1))
        .then(|| format!("{large} programs hold more than {RESIDENT_BYTES} bytes of memory"))
}

fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// A rate that is higher than that of the control group, by a one-sided exact test.
fn worse_rate(bake: &Bake<'_>, limits: &Judge) -> Option<String> {
    let tests = RATES * LOOKS * bake.bakes.max(1);
    let rates: [(&str, Counter); 4] = [
        ("OOM kills", |one| one.oom_kills),
        ("refusals by pressure", |one| one.refusals),
        ("looks under full pressure", |one| one.full_looks),
        ("lost links", |one| one.lost_links),
    ];
    rates.into_iter().find_map(|(name, count)| {
        let changed = total(bake.changed, count);
        let control = total(bake.control, count);
        let is_worse = exact::is_higher(changed, control, limits.significance_ppm, tests);
        is_worse.then(|| {
            format!(
                "{name}: {} in {} s, against {} in {} s of the release before",
                changed.events, changed.exposure, control.events, control.exposure
            )
        })
    })
}

/// Events and time of a group, without guests whose figure is an outlier.
fn total(guests: &[&Readings], count: Counter) -> exact::Count {
    let mut counts: Vec<u64> = guests.iter().map(|one| count(one)).collect();
    counts.sort_unstable();
    let median = counts.get(counts.len() / 2).copied().unwrap_or(0);
    let most = median.max(1).saturating_mul(OUTLIER);
    let sound = guests
        .iter()
        .filter(|one| guests.len() < 3 || count(one) <= most);
    let mut total = exact::Count::default();
    for one in sound {
        total.events += count(one);
        total.exposure += one.seconds;
    }
    total
}

/// Resizes that take longer than those of the control group.
fn slower(bake: &Bake<'_>, limits: &Judge) -> Option<String> {
    let (changed, control) = (median(bake.changed)?, median(bake.control)?);
    let most = u64::from(control) * u64::from(limits.resize_percent) / 100;
    (u64::from(changed) > most).then(|| {
        format!("a resize takes {changed} ms, against {control} ms with the release before")
    })
}

fn median(guests: &[&Readings]) -> Option<u32> {
    let all = guests.iter().flat_map(|one| one.resize_millis.iter());
    let mut all: Vec<u32> = all.copied().collect();
    all.sort_unstable();
    let is_enough = all.len() >= LEAST_RESIZES;
    is_enough.then(|| all.get(all.len() / 2).copied())?
}

#[cfg(test)]
mod tests;
