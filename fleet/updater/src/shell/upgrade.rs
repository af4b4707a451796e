//! `upgrade`: carries out what the core of one run says.

use protocol::core::Core as _;
use semver::Version;

use super::files::Files;
use super::packages::{Manager, Packages};
use super::settings::Settings;
use super::state::{self, State};
use super::{Error, channel, monitor, output, timer};
use crate::core::upgrade::{Action, Event, Facts, Outcome, Upgrade};

/// One run: its settings, and what it remembers.
struct Run<'a, M> {
    files: &'a Files,
    settings: Settings,
    packages: Packages<M>,
    boot: String,
    state: State,
    wanted: Option<Version>,
    installed: Option<Version>,
}

/// Runs an upgrade. `None` if upgrades are off.
///
/// # Errors
/// Settings are wrong, or the machine cannot be asked.
#[expect(
    clippy::disallowed_methods,
    reason = "the core names the deadline, and no event comes before it"
)]
pub fn run<M: Manager>(files: &Files) -> Result<Option<Outcome>, Error> {
    let Some(settings) = Settings::enabled(&files.settings)? else {
        return Ok(None);
    };
    let mut run = Run::<M> {
        files,
        settings,
        packages: Packages::new(&files.state),
        boot: state::boot()?,
        state: State::read(files)?,
        wanted: None,
        installed: None,
    };
    let mut core = Upgrade::default();
    loop {
        let now = state::uptime()?;
        match core.poll_action(now) {
            Some(Action::End(outcome)) => {
                run.end(&outcome)?;
                return Ok(Some(outcome));
            }
            Some(action) => {
                let event = run
                    .act(action)
                    .unwrap_or_else(|error| Event::Failed(error.to_string()));
                core.handle(state::uptime()?, event);
            }
            None => {
                let deadline = core.poll_deadline().unwrap_or(now);
                std::thread::sleep(deadline.since(now).to_duration());
            }
        }
    }
}

impl<M: Manager> Run<'_, M> {
    fn act(&mut self, action: Action) -> Result<Event, Error> {
        match action {
            Action::Look => return self.look(),
            Action::Probe => return Ok(Event::Health(monitor::health(self.settings.page))),
            Action::Record => {
                self.state.begin(&self.boot, state::uptime()?);
                self.state.write(self.files)?;
            }
            Action::Refresh => self.packages.refresh()?,
            Action::Fetch(version) => self.packages.fetch(&version)?,
            Action::Keep(version) => self.packages.keep(&version)?,
            Action::Unmask => systemctl(&["unmask"])?,
            Action::Install(version) => self.packages.install(&version)?,
            Action::Start => start(self.settings.page)?,
            Action::PutBack(version) => {
                self.packages.put_back(&version)?;
                start(self.settings.page)?;
            }
            Action::End(_) => {}
        }
        Ok(Event::Done)
    }

    fn look(&mut self) -> Result<Event, Error> {
        let channel = channel::read(&self.settings);
        self.wanted = channel.version.clone().ok();
        self.installed = M::installed()?;
        Ok(Event::Looked(Box::new(Facts {
            wanted: channel.version,
            is_critical: channel.is_critical,
            installed: self.installed.clone(),
            health: monitor::health(self.settings.page),
            has_schedule: timer::is_scheduled(self.files),
            last_attempt: self.state.last_attempt(&self.boot),
            failed: self.state.failed(),
            machine: state::machine()?,
        })))
    }

    fn end(&mut self, outcome: &Outcome) -> Result<(), Error> {
        if outcome.is_failure() || matches!(outcome, Outcome::Upgraded { .. }) {
            let now = M::installed()?;
            let versions: Vec<&Version> = [&self.installed, &now].into_iter().flatten().collect();
            self.packages.forget_all_but(&versions);
            self.state.end(self.wanted.as_ref(), outcome);
            self.state.write(self.files)?;
        }
        Ok(())
    }
}

/// Starts the unit, unless a person disabled it. One that runs but does not answer starts again.
fn start(page: Option<std::net::SocketAddr>) -> Result<(), Error> {
    use crate::core::upgrade::UnitState;
    systemctl_all(&["daemon-reload"])?;
    if monitor::health(None).unit == UnitState::Disabled {
        return Ok(());
    }
    // The unit may have failed too often in a row to be started. One that is not loaded has no
    // such state, and systemctl says so by a failure.
    let _ = systemctl(&["reset-failed"]);
    let health = monitor::health(page);
    let verb = if health.is_active && !health.is_answering {
        "restart"
    } else {
        "start"
    };
    systemctl(&[verb])
}

fn systemctl(words: &[&str]) -> Result<(), Error> {
    systemctl_all(&[words, &[monitor::UNIT]].concat())
}

fn systemctl_all(words: &[&str]) -> Result<(), Error> {
    output(std::process::Command::new("systemctl").args(words))?;
    Ok(())
}
