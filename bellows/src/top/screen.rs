//! The full-screen view: alternate screen, raw keys, one redraw per interval.

use std::io::Write;
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue};
use tokio::sync::mpsc;

use super::draw::draw;
use super::frame::{Frame, History, Source};
use crate::fail::{Fail, Outcome};
use crate::terminal::{Paint, Tone};

/// Keys that wait to be handled.
const KEYS_IN_FLIGHT: usize = 16;
/// Interval at which the key reader checks whether the view has ended.
const KEY_POLL: Duration = Duration::from_millis(200);

/// Command of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyCommand {
    Quit,
    Up,
    Down,
    Redraw,
}

/// Restores the terminal when it is dropped.
struct Screen;

impl Screen {
    fn enter() -> std::io::Result<Self> {
        crossterm::terminal::enable_raw_mode()?;
        let screen = Self;
        execute!(std::io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(std::io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = crossterm::terminal::disable_raw_mode();
    }
}

pub(super) async fn run(
    source: &Source,
    mut history: History,
    interval: Duration,
    paint: Paint,
) -> Outcome {
    let (commands, mut asked) = mpsc::channel(KEYS_IN_FLIGHT);
    let mut last = source.fetch(&mut history).await?;
    let ended_by_signal = daemon_kit::shutdown::on_signal().map_err(broken)?;
    let screen = Screen::enter().map_err(broken)?;
    let reader = std::thread::spawn(move || read_keys(&commands));
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.reset();
    let (mut scroll, mut trouble) = (0_usize, None);
    let ended = loop {
        if let Err(error) = show(&last, scroll, trouble.as_deref(), paint) {
            break Err(broken(error));
        }
        tokio::select! {
            _ = ticks.tick() => match source.fetch(&mut history).await {
                Ok(frame) => { last = frame; trouble = None; }
                // The last view stays, with the reason why it is old.
                Err(fail) => trouble = Some(fail.what().to_owned()),
            },
            () = ended_by_signal.cancelled() => break Ok(()),
            ask = asked.recv() => match ask {
                Some(KeyCommand::Quit) | None => break Ok(()),
                Some(KeyCommand::Up) => scroll = scroll.saturating_sub(1),
                Some(KeyCommand::Down) => scroll = scroll.saturating_add(1),
                Some(KeyCommand::Redraw) => {}
            },
        }
    };
    drop(asked);
    drop(screen);
    let _ = reader.join();
    ended
}

fn broken(error: std::io::Error) -> Fail {
    Fail::bug(format!("the terminal cannot be drawn on: {error}"))
        .fix("print the view once: bellows top --once")
}

fn show(frame: &Frame, scroll: usize, trouble: Option<&str>, paint: Paint) -> std::io::Result<()> {
    let (columns, rows) = crossterm::terminal::size()?;
    let (columns, rows) = (usize::from(columns), usize::from(rows));
    let mut lines = draw(frame, columns, paint);
    let room = rows.saturating_sub(1).max(1);
    let scroll = scroll.min(lines.len().saturating_sub(room));
    lines.drain(..scroll);
    lines.truncate(room);
    lines.resize(room, String::new());
    lines.push(match trouble {
        Some(why) => paint.paint(Tone::Bad, &format!("old view: {why}")),
        None => paint.paint(Tone::Dim, "q quit, arrows scroll"),
    });
    let mut stdout = std::io::stdout().lock();
    queue!(
        stdout,
        cursor::MoveTo(0, 0),
        crossterm::terminal::DisableLineWrap
    )?;
    for (index, line) in lines.iter().enumerate() {
        queue!(stdout, Clear(ClearType::CurrentLine))?;
        write!(stdout, "{line}")?;
        if index + 1 < lines.len() {
            write!(stdout, "\r\n")?;
        }
    }
    queue!(stdout, crossterm::terminal::EnableLineWrap)?;
    stdout.flush()
}

fn read_keys(commands: &mpsc::Sender<KeyCommand>) {
    while !commands.is_closed() {
        match crossterm::event::poll(KEY_POLL) {
            Ok(false) => {}
            Ok(true) => {
                let Ok(event) = crossterm::event::read() else {
                    return;
                };
                if let Some(ask) = command_of(&event)
                    && commands.blocking_send(ask).is_err()
                {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

fn command_of(event: &Event) -> Option<KeyCommand> {
    match event {
        Event::Key(KeyEvent {
            code, modifiers, ..
        }) => match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => {
                Some(KeyCommand::Quit)
            }
            KeyCode::Char('q') | KeyCode::Esc => Some(KeyCommand::Quit),
            KeyCode::Up | KeyCode::Char('k') => Some(KeyCommand::Up),
            KeyCode::Down | KeyCode::Char('j') => Some(KeyCommand::Down),
            _ => None,
        },
        Event::Resize(..) => Some(KeyCommand::Redraw),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_ctrl_c_quit_and_nothing_else_does() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        for code in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(
                command_of(&key(code, KeyModifiers::NONE)),
                Some(KeyCommand::Quit)
            );
        }
        assert_eq!(
            command_of(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)),
            Some(KeyCommand::Quit)
        );
        assert_eq!(
            command_of(&key(KeyCode::Char('c'), KeyModifiers::NONE)),
            None
        );
        assert_eq!(
            command_of(&key(KeyCode::Down, KeyModifiers::NONE)),
            Some(KeyCommand::Down)
        );
        assert_eq!(command_of(&Event::Resize(1, 1)), Some(KeyCommand::Redraw));
    }
}
