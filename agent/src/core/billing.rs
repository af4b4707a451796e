//! What the VMs of this node used: the integral of each VM's CPU over time, in whole numbers.
//!
//! Time is split at every change that is seen, so the integral is exact. It is kept per VM and
//! billed endpoint (an *account*) and made into two events per account at the end of each period.
//! Fractions of a second that an event cannot say are carried into the next one, so that the events
//! of an account never differ from its integral by more than half a second.
//!
//! *Doubt*: while the watch fails, or this process is not there, nothing is known of a VM. Its
//! account is then in doubt, and is settled by what is seen next: a VM that is still there had at
//! least the smaller of its sizes before and after; one that is gone is not billed for that time,
//! nor is a time longer than [`MAX_DOUBT`]. An account in doubt makes no event until settled.
//!
//! *Restart*: [`Meter::checkpoint`] holds everything; a meter made from it has all its accounts in
//! doubt since then.
//!
//! Source: docs/compatibility/agent.md §4.6, §8 (15). The deployed agent samples each few seconds
//! and bills the smaller of two samples.

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::MilliCpu;
use serde::{Deserialize, Serialize};

/// Longest time in doubt that is billed.
pub const MAX_DOUBT: Span = Span::from_secs(3600);
/// Microseconds in a second: what one second of active time is counted in.
const ACTIVE_PARTS: i128 = 1_000_000;
/// Thousandths of a CPU times microseconds: what one CPU-second is counted in.
const CPU_PARTS: i128 = 1000 * ACTIVE_PARTS;

/// What a VM is billed for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Billed {
    /// Whom it is billed to.
    pub endpoint_id: String,
    /// What it has.
    pub cpu: MilliCpu,
}

/// One VM billed to one endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Key {
    uid: String,
    endpoint_id: String,
}

/// What was used and not yet told: totals in parts, and what the last events told too much (below
/// zero) or too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Total {
    cpu: u64,
    active: u64,
    cpu_carry: i64,
    active_carry: i64,
}

impl Total {
    fn add(&mut self, cpu: MilliCpu, span: Span) {
        self.cpu = self
            .cpu
            .saturating_add(u64::from(cpu.0).saturating_mul(span.0));
        self.active = self.active.saturating_add(span.0);
    }
}

/// What is known of a VM's use now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It is not there, or not billed.
    None,
    /// It has so much; counted up to `since`.
    Known { cpu: MilliCpu, since: Timestamp },
    /// It had so much at the beginning of the doubt, which is `before` plus all time after `since`.
    Doubt {
        cpu: MilliCpu,
        since: Timestamp,
        before: Span,
    },
}

#[derive(Debug, Clone)]
struct Account {
    total: Total,
    state: Use,
    /// Begin of what the next events tell.
    from: WallTime,
}

impl Account {
    /// Counts what is certain up to `now`.
    fn count(&mut self, now: Timestamp) {
        if let Use::Known { cpu, since } = self.state {
            self.total.add(cpu, now.since(since));
            self.state = Use::Known { cpu, since: now };
        }
    }

    /// Settles a doubt: from its begin until now it had `cpu`.
    fn settle(&mut self, now: Timestamp, cpu: MilliCpu) {
        if let Use::Doubt { since, before, .. } = self.state {
            let length = Span(now.since(since).0.saturating_add(before.0));
            if length <= MAX_DOUBT {
                self.total.add(cpu, length);
            }
            self.state = Use::Known { cpu, since: now };
        }
    }

    fn change(&mut self, now: Timestamp, cpu: MilliCpu) {
        match self.state {
            Use::None => {}
            Use::Known { .. } => self.count(now),
            Use::Doubt { cpu: old, .. } => self.settle(now, old.min(cpu)),
        }
        self.state = Use::Known { cpu, since: now };
    }

    fn end(&mut self, now: Timestamp) {
        self.count(now);
        self.state = Use::None;
    }
}

/// An event as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillingEvent {
    /// The same for the same event however often it is sent, and for no other.
    pub idempotency_key: String,
    /// Name of what is counted.
    pub metric: String,
    /// Kind of the event, always `incremental`: `value` counts this period alone.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whom it is billed to.
    pub endpoint_id: String,
    /// Begin, RFC 3339.
    pub start_time: String,
    /// End, RFC 3339.
    pub stop_time: String,
    /// Use in the period, in whole CPU-seconds or seconds by `metric`. The rest of a second counts
    /// in a later event.
    pub value: u64,
}

/// Names that events carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Metric of CPU-seconds.
    pub cpu_metric: String,
    /// Metric of seconds in which the VM was there.
    pub active_metric: String,
    /// Host name of the machine, a part of each idempotency key; `unknown` if the machine has none.
    pub host: String,
}

/// An account in a checkpoint. Times are microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedAccount {
    #[serde(flatten)]
    key: Key,
    #[serde(flatten)]
    total: Total,
    from: i64,
    /// What the VM has, while it is there.
    has: Option<u32>,
    /// Length of a doubt at the time of the checkpoint.
    doubt: u64,
}

/// Everything a meter knows at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// When, microseconds since 1970.
    at: i64,
    /// Begin of the period.
    period: i64,
    accounts: Vec<SavedAccount>,
}

/// The use of all VMs of a node.
#[derive(Debug, Clone)]
pub struct Meter {
    accounts: BTreeMap<Key, Account>,
    period: WallTime,
}

impl Meter {
    /// A meter that knows nothing; its first period begins at `wall`.
    #[must_use]
    pub fn new(wall: WallTime) -> Self {
        Self {
            accounts: BTreeMap::new(),
            period: wall,
        }
    }

    /// A meter that goes on where another one was saved.
    #[must_use]
    pub fn restore(saved: &Checkpoint, now: Timestamp, wall: WallTime) -> Self {
        // A clock that was set back must not make time.
        let away = u64::try_from(wall.0.saturating_sub(saved.at)).unwrap_or(0);
        let account = |saved: &SavedAccount| {
            let state = saved.has.map_or(Use::None, |cpu| Use::Doubt {
                cpu: MilliCpu(cpu),
                since: now,
                before: Span(saved.doubt.saturating_add(away)),
            });
            let account = Account {
                total: saved.total,
                state,
                from: WallTime(saved.from),
            };
            (saved.key.clone(), account)
        };
        Self {
            accounts: saved.accounts.iter().map(account).collect(),
            period: WallTime(saved.period),
        }
    }

    /// Notes what a VM has now, or that it is not billed any more.
    pub fn observe(&mut self, now: Timestamp, uid: &str, billed: Option<&Billed>) {
        let first = Key {
            uid: uid.to_owned(),
            endpoint_id: String::new(),
        };
        for (key, account) in self.accounts.range_mut(first..) {
            if key.uid != uid {
                break;
            }
            if billed.is_none_or(|billed| billed.endpoint_id != key.endpoint_id) {
                account.end(now);
            }
        }
        let Some(billed) = billed else { return };
        let key = Key {
            uid: uid.to_owned(),
            endpoint_id: billed.endpoint_id.clone(),
        };
        let account = self.accounts.entry(key).or_insert(Account {
            total: Total::default(),
            state: Use::None,
            from: self.period,
        });
        account.change(now, billed.cpu);
    }

    /// Nothing is seen from now on.
    pub fn doubt(&mut self, now: Timestamp) {
        for account in self.accounts.values_mut() {
            account.count(now);
            if let Use::Known { cpu, .. } = account.state {
                account.state = Use::Doubt {
                    cpu,
                    since: now,
                    before: Span(0),
                };
            }
        }
    }

    /// What is seen is whole again: VMs of which nothing new was said are as before.
    pub fn certain(&mut self, now: Timestamp) {
        for account in self.accounts.values_mut() {
            if let Use::Doubt { cpu, .. } = account.state {
                account.settle(now, cpu);
            }
        }
    }

    /// Whether anything is in doubt.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        let mut states = self.accounts.values().map(|account| account.state);
        states.any(|state| matches!(state, Use::Doubt { .. }))
    }

    /// Ends every account whose VM is not among these: a whole list was read.
    pub fn retain(&mut self, now: Timestamp, is_there: impl Fn(&str) -> bool) {
        for (key, account) in &mut self.accounts {
            if !is_there(&key.uid) {
                account.end(now);
            }
        }
    }

    /// Ends the period: two events for each account with something to tell, and the next period
    /// begins.
    pub fn accumulate(
        &mut self,
        now: Timestamp,
        wall: WallTime,
        names: &Names,
    ) -> Vec<BillingEvent> {
        // Strictly after the last one, whatever the clock does: keys are made of it.
        let wall = wall.max(WallTime(self.period.0.saturating_add(1)));
        let mut told = Vec::new();
        for (key, account) in &mut self.accounts {
            account.count(now);
            if matches!(account.state, Use::Doubt { .. }) || account.total.active == 0 {
                continue;
            }
            let total = &mut account.total;
            let cpu = take_whole(&mut total.cpu, &mut total.cpu_carry, CPU_PARTS);
            let active = take_whole(&mut total.active, &mut total.active_carry, ACTIVE_PARTS);
            told.push((&key.endpoint_id, account.from, &names.cpu_metric, cpu));
            told.push((&key.endpoint_id, account.from, &names.active_metric, active));
            account.from = wall;
        }
        let (stop, count) = (text(wall), told.len());
        let events = told.into_iter().zip(1_usize..);
        let events = events.map(|((endpoint_id, from, metric, value), n)| BillingEvent {
            idempotency_key: format!("{stop}-{}-{n}/{count}", names.host),
            metric: metric.clone(),
            kind: "incremental".into(),
            endpoint_id: endpoint_id.clone(),
            start_time: text(from),
            stop_time: stop.clone(),
            value,
        });
        let events = events.collect();
        self.period = wall;
        for account in self.accounts.values_mut() {
            let is_doubtful = matches!(account.state, Use::Doubt { .. });
            if account.total.active == 0 && !is_doubtful {
                account.from = wall;
            }
        }
        self.accounts
            .retain(|_, account| account.state != Use::None || account.total.active > 0);
        events
    }

    /// Everything known at this time.
    pub fn checkpoint(&mut self, now: Timestamp, wall: WallTime) -> Checkpoint {
        let accounts = self.accounts.iter_mut().map(|(key, account)| {
            account.count(now);
            let (has, doubt) = match account.state {
                Use::None => (None, 0),
                Use::Known { cpu, .. } => (Some(cpu.0), 0),
                Use::Doubt { cpu, since, before } => {
                    (Some(cpu.0), now.since(since).0.saturating_add(before.0))
                }
            };
            SavedAccount {
                key: key.clone(),
                total: account.total,
                from: account.from.0,
                has,
                doubt,
            }
        });
        Checkpoint {
            at: wall.0,
            period: self.period.0,
            accounts: accounts.collect(),
        }
    }

    /// Number of accounts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    /// Whether there is no account.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }
}

/// Takes whole units out of a total, rounded; what rounding gave or took is carried.
fn take_whole(total: &mut u64, carry: &mut i64, unit: i128) -> u64 {
    let exact = i128::from(std::mem::take(total)) + i128::from(*carry);
    // Half up. The carry is never below minus one half, so this is never below zero.
    let whole = (exact + unit / 2).div_euclid(unit).max(0);
    *carry = i64::try_from(exact - whole * unit).unwrap_or(0);
    u64::try_from(whole).unwrap_or(u64::MAX)
}

/// RFC 3339 in UTC with as many digits of the second as it has.
#[must_use]
pub fn text(at: WallTime) -> String {
    let long = at.to_micro_string();
    let digits = long.trim_end_matches('Z').trim_end_matches('0');
    format!("{}Z", digits.trim_end_matches('.'))
}

#[cfg(test)]
#[path = "billing_tests.rs"]
mod tests;
