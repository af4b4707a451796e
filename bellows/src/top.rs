//! `bellows top`: a live view in a terminal, or plain lines elsewhere.
//!
//! Each interval fetches one [`Frame`](frame::Frame). Drawing is pure ([`draw`]), so that a
//! snapshot test shows what a person sees.

mod draw;
mod frame;
mod screen;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use crate::args::NamespaceArgs;
use crate::context::Context;
use crate::fail::Outcome;
use crate::terminal::out;

/// Live view: size, load and decisions of every VM.
///
/// In a terminal the view fills the screen and is drawn anew at every interval; q or Ctrl-C ends
/// it, arrow keys scroll. Elsewhere every interval prints one line per VM.
#[derive(Debug, Clone, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Print one view and end
    #[arg(long)]
    once: bool,
    /// Seconds between views, fractions allowed
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = parse_interval)]
    interval: Duration,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("an interval is a number of seconds from 0.1 to 3600".into()),
    }
}

pub(crate) async fn run(context: &Context, args: &TopArgs) -> Outcome {
    let api = context.api().await?;
    let source = frame::Source::new(
        context.clone(),
        api,
        args.namespace.chosen().map(str::to_owned),
    );
    let mut history = frame::History::default();
    if args.once {
        let frame = source.fetch(&mut history).await?;
        for line in draw::draw(&frame, draw::ONCE_WIDTH, context.paint()) {
            out(&line);
        }
        return Ok(());
    }
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return screen::run(&source, history, args.interval, context.paint()).await;
    }
    loop {
        let frame = source.fetch(&mut history).await?;
        for line in draw::plain(&frame) {
            out(&line);
        }
        tokio::time::sleep(args.interval).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds_within_reason() {
        assert_eq!(parse_interval("0.5").unwrap(), Duration::from_millis(500));
        for bad in ["0", "-1", "x", "1e9", "NaN", "inf"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
