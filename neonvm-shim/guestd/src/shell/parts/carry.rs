//! Carries out orders step by step.

use std::fs;
use std::time::Duration;

use neonvm_parts::core::orders::{self, Plan, Step};
use neonvm_parts::core::record::{Record, Verb};
use neonvm_parts::core::refusal::Refusal;
use neonvm_parts::core::request::Order;
use neonvm_parts::core::state;
use neonvm_parts::core::trial::Slot;
use neonvm_parts::shell::places::Stepped;
use protocol::parts::control::Exec;
use protocol::parts::{PartName, PartState};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::monitor::{self, Exchanged};
use super::{Failure, Parts, Renewal};

/// Longest time in which the monitor shows the program that it was told to execute.
const EXEC_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

impl Parts {
    /// Carries out `try`, `keep` or `back`.
    pub(super) async fn order(
        &self,
        part: PartName,
        verb: Verb,
        order: &Order,
    ) -> Result<PartState, Failure> {
        let _turn = self.turn.lock().await;
        let places = self.places(part);
        let (record, sight) = (places.record()?, places.sight()?);
        let plan = match verb {
            Verb::Keep => orders::keep(&record, &sight, order)?,
            Verb::Back => orders::back(&record, &sight, order)?,
            Verb::Try | Verb::Bring => {
                let (from, uptime_s) = (self.from(part), self.uptime()?);
                let plan = orders::attempt(&record, &sight, order, from, uptime_s)?;
                if matches!(plan, Plan::Carry(..)) {
                    self.may_try(part)?;
                }
                plan
            }
        };
        self.carry_out(part, verb, &order.token, plan).await
    }

    /// A guest changes one part at a time, and only if its scripts can take it back.
    fn may_try(&self, part: PartName) -> Result<(), Failure> {
        if !self.has_scripts() {
            let text = "this guest has no script that takes a program back: use a newer image";
            return Err(Refusal::Busy(text.to_owned()).into());
        }
        for other in PartName::ALL.into_iter().filter(|other| *other != part) {
            let sight = self.places(other).sight()?;
            if sight.trial.is_some() || sight.returning.is_some() {
                let text = format!("{} is on trial", other.as_str());
                return Err(Refusal::Busy(text).into());
            }
        }
        Ok(())
    }

    /// Carries out a plan, and records its response.
    pub(super) async fn carry_out(
        &self,
        part: PartName,
        verb: Verb,
        token: &str,
        plan: Plan,
    ) -> Result<PartState, Failure> {
        let (steps, after) = match plan {
            Plan::Repeat(state) => return Ok(*state),
            Plan::Carry(steps, after) => (steps, after),
        };
        if let Err(failure) = self.steps(part, &steps).await {
            if verb == Verb::Try {
                self.undo(part, &after)?;
            }
            return Err(failure);
        }
        let state = self.finish(part, verb, token, *after).await?;
        info!(part = part.as_str(), ?verb, token, phase = ?state.phase, "part order carried out");
        self.publish().await?;
        Ok(state)
    }

    async fn finish(
        &self,
        part: PartName,
        verb: Verb,
        token: &str,
        mut after: Record,
    ) -> Result<PartState, Failure> {
        let places = self.places(part);
        let running = self.running(part).await;
        token.clone_into(&mut after.token);
        let state = state::state(&after, &places.sight()?, &running, self.uptime()?);
        after.remember(token, verb, state.clone());
        places.carry_out(&Step::Record(Box::new(after)))?;
        Ok(state)
    }

    /// Puts back the files of a trial whose program did not begin to run.
    pub(super) fn undo(&self, part: PartName, record: &Record) -> Result<(), Failure> {
        let places = self.places(part);
        let Some(trial) = places.sight()?.trial else {
            return Ok(());
        };
        for step in orders::undo(record, &trial) {
            places.carry_out(&step)?;
        }
        Ok(())
    }

    /// Takes back a trial of this daemon whose program could not be executed.
    ///
    /// # Errors
    /// The file system's error.
    pub fn not_executed(&self) -> Result<(), Failure> {
        let part = PartName::Guestd;
        let record = self.places(part).record()?;
        self.undo(part, &record)
    }

    pub(super) async fn steps(&self, part: PartName, steps: &[Step]) -> Result<(), Failure> {
        let places = self.places(part);
        for step in steps {
            match step {
                Step::Watch => {
                    self.note_begin(part)?;
                    self.watch(part)?;
                }
                Step::Change(slot) => self.change(part, *slot).await?,
                Step::Stop(slot) if part == PartName::Guestd => {
                    if self.runs(part, *slot) {
                        self.renew(Renewal::End);
                    }
                }
                Step::Stop(slot) => self.end(part, *slot).await?,
                of_files => {
                    if places.carry_out(of_files)? == Stepped::Lost {
                        let token = places.record()?.token;
                        return Err(Refusal::GoneBack(token, String::new()).into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes when the trial began, as `TOKEN UPTIME`. The process of the part may be older: it
    /// executes the program on trial in place of the former one.
    fn note_begin(&self, part: PartName) -> Result<(), Failure> {
        let Some(trial) = self.places(part).sight()?.trial else {
            return Ok(());
        };
        let path = self.settings.run.join(format!("{}.tried", part.as_str()));
        let noted = fs::read_to_string(&path).unwrap_or_default();
        // A repeated order does not begin the trial again.
        if noted.split_ascii_whitespace().next() != Some(&trial.token) {
            fs::write(&path, format!("{} {}\n", trial.token, self.uptime()?))?;
        }
        Ok(())
    }

    fn renew(&self, renewal: Renewal) {
        // A renewal that waits already has the same effect: the files decide what starts.
        let _ = self.renewals.try_send(renewal);
    }

    async fn change(&self, part: PartName, slot: Slot) -> Result<(), Failure> {
        let program = self.places(part).program(slot).canonicalize()?;
        if part == PartName::Guestd {
            self.renew(Renewal::Execute(program));
            return Ok(());
        }
        let brought = self.places(part).record()?.programs.remove(&slot);
        let order = Exec {
            path: program.display().to_string(),
            sha256: brought.map(|it| it.sha256).unwrap_or_default(),
        };
        match monitor::exec(&self.settings.monitor_control, &order).await {
            Exchanged::Refused(reason) => Err(Refusal::Busy(reason).into()),
            Exchanged::Begun => {
                let until = Instant::now() + EXEC_LIMIT;
                // If the new program has ended by then, the files say so.
                while !self.runs(part, slot) && self.is_on_trial(part)? {
                    if Instant::now() > until {
                        let text = "the monitor did not execute the program";
                        return Err(Refusal::Busy(text.to_owned()).into());
                    }
                    sleep(POLL).await;
                }
                Ok(())
            }
            Exchanged::NoControl => self.restart(part).await,
        }
    }

    fn is_on_trial(&self, part: PartName) -> Result<bool, Failure> {
        Ok(self.places(part).sight()?.trial.is_some())
    }

    /// Ends a process that cannot execute another program. Init starts the one on trial.
    async fn restart(&self, part: PartName) -> Result<(), Failure> {
        let name = part.as_str();
        warn!(
            part = name,
            "no control socket: the process is ended and started again"
        );
        fs::write(self.settings.run.join(format!("{name}.fresh")), "")?;
        self.end_any(part).await?;
        Ok(())
    }
}
