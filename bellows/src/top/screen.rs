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

/// Keys that may wait.
const KEYS_IN_FLIGHT: usize = 16;
/// How long the key reader waits before it looks whether the view has ended.
const KEY_POLL: Duration = Duration::from_millis(200);

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Quit,
    Up,
    Down,
    Redraw,
}

/// Puts the terminal back however the view ends.
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
    let (asks, mut asked) = mpsc::channel(KEYS_IN_FLIGHT);
    let mut last = source.fetch(&mut history).await?;
    let ended_by_signal = daemon_kit::shutdown::on_signal().map_err(broken)?;
    let screen = Screen::enter().map_err(broken)?;
    let reader = std::thread::spawn(move || read_keys(&asks));
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
                Some(Ask::Quit) | None => break Ok(()),
                Some(Ask::Up) => scroll = scroll.saturating_sub(1),
                Some(Ask::Down) => scroll = scroll.saturating_add(1),
                Some(Ask::Redraw) => {}
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

fn read_keys(asks: &mpsc::Sender<Ask>) {
    while !asks.is_closed() {
        match crossterm::event::poll(KEY_POLL) {
            Ok(false) => {}
            Ok(true) => {
                let Ok(event) = crossterm::event::read() else {
                    return;
                };
                if let Some(ask) = ask_of(&event)
                    && asks.blocking_send(ask).is_err()
                {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

fn ask_of(event: &Event) -> Option<Ask> {
    match event {
        Event::Key(KeyEvent {
            code, modifiers, ..
        }) => match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Ask::Quit),
            KeyCode::Char('q') | KeyCode::Esc => Some(Ask::Quit),
            KeyCode::Up | KeyCode::Char('k') => Some(Ask::Up),
            KeyCode::Down | KeyCode::Char('j') => Some(Ask::Down),
            _ => None,
        },
        Event::Resize(..) => Some(Ask::Redraw),
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
            assert_eq!(ask_of(&key(code, KeyModifiers::NONE)), Some(Ask::Quit));
        }
        assert_eq!(
            ask_of(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)),
            Some(Ask::Quit)
        );
        assert_eq!(ask_of(&key(KeyCode::Char('c'), KeyModifiers::NONE)), None);
        assert_eq!(
            ask_of(&key(KeyCode::Down, KeyModifiers::NONE)),
            Some(Ask::Down)
        );
        assert_eq!(ask_of(&Event::Resize(1, 1)), Some(Ask::Redraw));
    }
}
