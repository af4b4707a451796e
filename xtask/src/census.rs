//! `cargo xtask census`: figures of the house, read from the files of the checkout by tidy's
//! readers. It judges nothing; `tidy` does.

mod doubled;
mod figures;
#[cfg(test)]
mod fixture;
mod functions;
mod shadows;
mod sources;
mod table;

use anyhow::Result;
use clap::{Args, ValueEnum};

use self::figures::Census;
use crate::shell;
use crate::tidy::citations;
use crate::tidy::house;

/// Options of `census`.
#[derive(Args)]
#[command(after_long_help = how_it_counts())]
pub(crate) struct Options {
    /// Form of the figures
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For programs; it also names the place of each shadow chain
    Json,
}

/// The part of the help that says how each figure is counted.
fn how_it_counts() -> String {
    let mut help = format!(
        "How it counts:\n\
         \x20 files            Rust files that git knows or would add\n\
         \x20 tests            {}\n\
         \x20 lines            those that are not blank; code and comments outside of tests\n\
         \x20 stub comments    as `tidy` finds them: one or two words, or the words of the name\n\
         \x20 over 100 columns comments that could be broken; no tables, drawings or long words\n\
         \x20 shadow chains    {}\n\
         \x20 circles          files of a crate that need each other, two or more\n\
         \x20 longest file     all its lines, blank ones and unit tests too\n\
         \x20 longest function from `fn` to its closing brace; an inner one counts twice\n\
         \x20 dead citations   as `tidy` finds them: documents, sections, requirements, tests\n\
         \n\
         Doubled ideas are found by text. One file may hold a marker for a good reason:\n",
        sources::HOW,
        shadows::HOW,
    );
    for idea in doubled::IDEAS {
        help.push_str(&format!("  {}: {}\n", idea.name, idea.shown()));
    }
    help
}

/// Prints the figures of the checkout.
pub(crate) fn run(options: &Options) -> Result<()> {
    let census = Census::of(&house::files()?, citations::findings()?.len());
    match options.output {
        Output::Table => table::lines(&census)
            .iter()
            .for_each(|line| shell::say(line)),
        Output::Json => shell::say(&serde_json::to_string_pretty(&census)?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn help_names_every_marker_and_says_how_chains_are_counted() {
        let help = Line::command().render_long_help().to_string();
        for idea in doubled::IDEAS {
            let markers = idea.all_of.iter().flat_map(|one_of| one_of.iter());
            for text in markers.map(|marker| marker.shown()) {
                assert!(help.contains(&text), "{text}: {help}");
            }
        }
        assert!(help.contains("`let x = x"), "{help}");
        let widest = help.lines().map(|line| line.chars().count()).max();
        assert!(widest < Some(180), "{help}");
    }

    #[test]
    fn figures_are_a_table_unless_something_else_is_asked_for() {
        let output = |words: &[&str]| {
            let line = <Line as clap::Parser>::try_parse_from([&["census"], words].concat());
            line.map(|line| line.options.output)
        };
        assert_eq!(output(&[]).expect("no option"), Output::Table);
        assert_eq!(output(&["-o", "json"]).expect("known"), Output::Json);
        assert!(output(&["-o", "yaml"]).is_err());
    }
}
