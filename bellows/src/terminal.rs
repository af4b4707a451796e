//! Capabilities of the terminal: colours, width, and whether a person reads the output.

use std::io::{IsTerminal, Write};

use clap::ValueEnum;

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ColourChoice {
    /// Only when the output is a terminal and NO_COLOR is not set.
    #[default]
    Auto,
    /// Always, also into a file or pipe.
    Always,
    /// Never, also on a terminal.
    Never,
}

/// Meaning of a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    /// In progress, or worth a look.
    Warn,
    /// A failure or a wrong state.
    Bad,
    /// Headings of tables and views, in bold.
    Strong,
    /// Less important text, such as hints and ended things.
    Dim,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Warn => "33",
            Self::Bad => "31",
            Self::Strong => "1",
            Self::Dim => "2",
        }
    }
}

/// Adds colours to text, if enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Adds no colours, whatever the terminal and NO_COLOR.
    pub(crate) const PLAIN: Self = Self { on: false };

    /// Settings for standard output.
    pub(crate) fn stdout(choice: ColourChoice) -> Self {
        Self {
            on: decide(choice, std::io::stdout().is_terminal()),
        }
    }

    /// Settings for standard error.
    pub(crate) fn stderr(choice: ColourChoice) -> Self {
        Self {
            on: decide(choice, std::io::stderr().is_terminal()),
        }
    }

    /// The text in a tone.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        if self.on && !text.is_empty() {
            format!("\u{1b}[{}m{text}\u{1b}[0m", tone.code())
        } else {
            text.to_owned()
        }
    }
}

fn decide(choice: ColourChoice, is_terminal: bool) -> bool {
    match choice {
        ColourChoice::Always => true,
        ColourChoice::Never => false,
        ColourChoice::Auto => {
            is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        }
    }
}

/// Writes a line to standard output. A closed pipe (`
///
/// head`) is not an error.
pub(crate) fn out(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Writes a line to standard error.
pub(crate) fn err(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Whether input and output are a terminal. Only then may a command ask a question.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks a yes-or-no question on the terminal. Any answer but `y` and `yes` means no.
pub(crate) fn ask(question: &str) -> bool {
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "{question} [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paint_is_off_unless_it_is_on() {
        assert_eq!(Paint::PLAIN.paint(Tone::Bad, "x"), "x");
        assert_eq!(
            Paint { on: true }.paint(Tone::Bad, "x"),
            "\u{1b}[31mx\u{1b}[0m"
        );
        assert_eq!(Paint { on: true }.paint(Tone::Bad, ""), "");
        assert!(decide(ColourChoice::Always, false));
        assert!(!decide(ColourChoice::Never, true));
        assert!(!decide(ColourChoice::Auto, false));
    }
}
