//! Usage of the VMs of this node: the integral of each VM's CPU over time, in whole numbers.
//!
//! The meter splits time at every change, so the integral is exact. It keeps one *account* per VM
//! and billed endpoint. At the end of each period an account becomes two events. A fraction of a
//! second is carried into the next event, so the events of an account never differ from its
//! integral by more than half a second.
//!
//! *Doubt*: while the watch fails or no process runs, the size of a VM is unknown and its account
//! is in doubt. The next state of the VM settles it. A VM that still exists is billed the smaller
//! of its sizes before and after. A VM that is gone is not billed for that time, and no doubt
//! longer than [`MAX_DOUBT`] is billed. An account in doubt makes no event.
//!
//! *Restart*: [`Meter::checkpoint`] holds the whole state. In a meter restored from it, all
//! accounts are in doubt since the checkpoint.
//!
//! Source: docs/compatibility/agent.md §4.6, §8 (15). The deployed agent samples each few seconds
//! and bills the smaller of two samples.

use std::collections::BTreeMap;

use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::MilliCpu;
use serde::{Deserialize, Serialize};

/// Longest doubt that is billed.
pub const MAX_DOUBT: Span = Span::from_secs(3600);
/// Parts of one second of active time: microseconds.
const ACTIVE_PARTS: i128 = 1_000_000;
/// Parts of one CPU-second: thousandths of a CPU times microseconds.
const CPU_PARTS: i128 = 1000 * ACTIVE_PARTS;

/// Size of a billed VM and the endpoint that pays for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Billed {
    /// Endpoint that the usage is billed to.
    pub endpoint_id: String,
    /// CPU that the VM has now.
    pub cpu: MilliCpu,
}

/// Key of an account: a VM and the endpoint it is billed to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Key {
    uid: String,
    endpoint_id: String,
}

/// Usage that no event reports so far, in parts. A carry is the rounding error of the last events;
/// it is negative when they reported too much.
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

/// Current use of an account's VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// The VM is gone, or is not billed to this endpoint.
    None,
    /// The VM has `cpu`; usage is counted up to `since`.
    Known { cpu: MilliCpu, since: Timestamp },
    /// The VM had `cpu` when the doubt began. The doubt lasts `before` plus the time after `since`.
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
    /// Begin of the period that the next events report.
    from: WallTime,
}

impl Account {
    /// Counts the certain usage up to `now`.
    fn count(&mut self, now: Timestamp) {
        if let Use::Known { cpu, since } = self.state {
            self.total.add(cpu, now.since(since));
            self.state = Use::Known { cpu, since: now };
        }
    }

    /// Settles a doubt: bills `cpu` from its begin until now.
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

/// One event in the JSON form that receivers get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillingEvent {
    /// Unique key of the event. It is the same at each attempt to send the event.
    pub idempotency_key: String,
    /// Name of the counted quantity: [`Names::cpu_metric`] or [`Names::active_metric`].
    pub metric: String,
    /// Kind of the event, always `incremental`: `value` counts this period alone.
    #[serde(rename = "type")]
    pub kind: String,
    /// Endpoint that the usage is billed to.
    pub endpoint_id: String,
    /// Begin of the period, RFC 3339 in UTC.
    pub start_time: String,
    /// End of the period, RFC 3339 in UTC.
    pub stop_time: String,
    /// Use in the period, in whole CPU-seconds or seconds by `metric`. The rest of a second counts
    /// in a later event.
    pub value: u64,
}

/// Names in billing events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Metric that counts CPU-seconds.
    pub cpu_metric: String,
    /// Metric that counts seconds in which the VM ran.
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
    /// CPU of the VM, thousandths; `None` when it is gone.
    has: Option<u32>,
    /// Length of the doubt at the time of the checkpoint.
    doubt: u64,
}

/// State of a meter at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Time of the checkpoint, microseconds since 1970.
    at: i64,
    /// Begin of the period, microseconds since 1970.
    period: i64,
    accounts: Vec<SavedAccount>,
}

/// Accounts of all VMs of a node.
#[derive(Debug, Clone)]
pub struct Meter {
    accounts: BTreeMap<Key, Account>,
    period: WallTime,
}

impl Meter {
    /// A meter without accounts. Its first period begins at `wall`.
    #[must_use]
    pub fn new(wall: WallTime) -> Self {
        Self {
            accounts: BTreeMap::new(),
            period: wall,
        }
    }

    /// Continues a saved meter. The time between the checkpoint and `wall` is in doubt.
    #[must_use]
    pub fn restore(saved: &Checkpoint, now: Timestamp, wall: WallTime) -> Self {
        // A clock that was set back must not add time.
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

    /// Takes the current size of a VM; `None` = it is not billed any more.
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

    /// Puts all accounts in doubt: the watch failed.
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

    /// Settles all doubts: the watch has caught up, and VMs without a change are as before.
    pub fn certain(&mut self, now: Timestamp) {
        for account in self.accounts.values_mut() {
            if let Use::Doubt { cpu, .. } = account.state {
                account.settle(now, cpu);
            }
        }
    }

    /// Whether any account is in doubt.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        let mut states = self.accounts.values().map(|account| account.state);
        states.any(|state| matches!(state, Use::Doubt { .. }))
    }

    /// Ends every account for whose UID `is_there` is false. Call it after a complete list.
    pub fn retain(&mut self, now: Timestamp, is_there: impl Fn(&str) -> bool) {
        for (key, account) in &mut self.accounts {
            if !is_there(&key.uid) {
                account.end(now);
            }
        }
    }

    /// Ends the period and begins the next one. Returns two events for each account with usage.
    pub fn accumulate(
        &mut self,
        now: Timestamp,
        wall: WallTime,
        names: &Names,
    ) -> Vec<BillingEvent> {
        // Keys contain this time, so it must follow the last one, whatever the clock does.
        let end = wall.max(WallTime(self.period.0.saturating_add(1)));
        let mut reported = Vec::new();
        for (key, account) in &mut self.accounts {
            account.count(now);
            if matches!(account.state, Use::Doubt { .. }) || account.total.active == 0 {
                continue;
            }
            let total = &mut account.total;
            let cpu = take_whole(&mut total.cpu, &mut total.cpu_carry, CPU_PARTS);
            let active = take_whole(&mut total.active, &mut total.active_carry, ACTIVE_PARTS);
            reported.push((&key.endpoint_id, account.from, &names.cpu_metric, cpu));
            reported.push((&key.endpoint_id, account.from, &names.active_metric, active));
            account.from = end;
        }
        let stop = text(end);
        let count = reported.len();
        let event = |((endpoint_id, from, metric, value), n)| {
            let metric: &String = metric;
            let endpoint_id: &String = endpoint_id;
            BillingEvent {
                idempotency_key: format!("{stop}-{}-{n}/{count}", names.host),
                metric: metric.clone(),
                kind: "incremental".into(),
                endpoint_id: endpoint_id.clone(),
                start_time: text(from),
                stop_time: stop.clone(),
                value,
            }
        };
        let events = reported.into_iter().zip(1_usize..).map(event).collect();
        self.begin_period(end);
        events
    }

    /// Begins a period at `wall` and drops accounts that are settled and reported.
    fn begin_period(&mut self, wall: WallTime) {
        self.period = wall;
        for account in self.accounts.values_mut() {
            let is_doubtful = matches!(account.state, Use::Doubt { .. });
            if account.total.active == 0 && !is_doubtful {
                account.from = wall;
            }
        }
        self.accounts
            .retain(|_, account| account.state != Use::None);
    }

    /// State of the meter with all certain usage counted up to `now`.
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

    /// Number of accounts, those in doubt included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    /// Whether the meter has no account.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }
}

/// Takes a rounded number of whole units out of a total. The rounding error goes into `carry`.
fn take_whole(total: &mut u64, carry: &mut i64, unit: i128) -> u64 {
    let exact = i128::from(std::mem::take(total)) + i128::from(*carry);
    // Half up. The carry is never below minus one half, so this is never below zero.
    let whole = (exact + unit / 2).div_euclid(unit).max(0);
    *carry = i64::try_from(exact - whole * unit).unwrap_or(0);
    u64::try_from(whole).unwrap_or(u64::MAX)
}

/// RFC 3339 in UTC with up to six digits of a second, without trailing zeros.
#[must_use]
pub(crate) fn text(at: WallTime) -> String {
    let long = at.to_micro_string();
    let digits = long.trim_end_matches('Z').trim_end_matches('0');
    format!("{}Z", digits.trim_end_matches('.'))
}

#[cfg(test)]
#[path = "billing_tests.rs"]
mod tests;
