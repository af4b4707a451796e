//! Failure of a command: what went wrong, the violated rule, the fix and the exit code.

use std::fmt;

use daemon_kit::exit::Exit;

/// The end of a command that did not do what was asked.
///
/// Printed as
/// ```text
/// error: 127.7.0.1:6443 is taken by process 4711 (nginx)
///  rule: the API server of this state directory always listens there
///   fix: end that process, or choose other addresses: bellows up --block N
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fail {
    exit: Exit,
    what: String,
    rule: Option<String>,
    fix: Option<String>,
}

/// Result of a command or a step of one.
pub(crate) type Outcome<T = ()> = Result<T, Fail>;

impl Fail {
    /// A failure with an exit code. `what` says what went wrong.
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            rule: None,
            fix: None,
        }
    }

    /// Usage or configuration is wrong. Exit code 64.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Config, what)
    }

    /// Something required is missing. Exit code 69.
    pub(crate) fn missing(what: impl Into<String>) -> Self {
        Self::new(Exit::Dependency, what)
    }

    /// A defect, or a failure of the machine that no user can mend. Exit code 70.
    pub(crate) fn bug(what: impl Into<String>) -> Self {
        Self::new(Exit::Bug, what)
    }

    /// The command may succeed later. Exit code 75.
    pub(crate) fn try_again(what: impl Into<String>) -> Self {
        Self::new(Exit::TryAgain, what)
    }

    /// The object or state that was asked for does not exist. Exit code 1.
    pub(crate) fn not_so(what: impl Into<String>) -> Self {
        Self::new(Exit::NotSo, what)
    }

    /// Adds the violated rule.
    #[must_use]
    pub(crate) fn rule(mut self, rule: impl Into<String>) -> Self {
        self.rule = Some(rule.into());
        self
    }

    /// Adds the command or change that mends it.
    #[must_use]
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// What went wrong, without rule and fix.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        for (name, text) in [(" rule", &self.rule), ("  fix", &self.fix)] {
            if let Some(text) = text {
                write!(f, "\n{name}: {}", text.replace('\n', "\n       "))?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Fail {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thing_rule_and_fix_each_get_a_line() {
        let fail = Fail::try_again("the state directory is in use")
            .rule("one process owns it")
            .fix("bellows down\nor another --state-dir");
        insta::assert_snapshot!(fail.to_string(), @r"
        error: the state directory is in use
         rule: one process owns it
          fix: bellows down
               or another --state-dir
        ");
        assert_eq!(fail.exit() as u8, 75);
    }
}
