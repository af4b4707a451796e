//! A loaded policy and its calls.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Value};
use policy_contract::sets::SetAnswer;
use policy_contract::{Answer, Fault, History, Input, Refusal, Seconds, SetInput, Spec};
use serde::Serialize;
use serde_json::Value as Json;

use crate::budget::{MAX_MEMORY, Steps};
use crate::failure::{CHUNK, Failed, LoadError};
use crate::{answer, globals, past, question, syntax};

/// Garbage of earlier calls that may be there when a call begins, bytes. Texts among it are found
/// instead of made, so a call may take less memory by as much.
const SLACK: usize = MAX_MEMORY / 4;

/// An answer and what it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluation<A = Answer> {
    /// The answer, checked.
    pub answer: A,
    /// Steps of the call, of at most [`crate::MAX_STEPS`].
    pub steps: u64,
}

/// A question with its past.
struct Question<'a, I> {
    input: &'a I,
    past: &'a History,
    now: Seconds,
}

/// A loaded policy.
#[derive(Debug)]
pub struct Engine {
    source: String,
    state: State,
}

/// An interpreter with the program of a policy.
#[derive(Debug)]
struct State {
    lua: Lua,
    /// The program. Each run returns a new function of the policy.
    program: Function,
    steps: Steps,
    /// Time of the present question.
    now: Rc<Cell<Seconds>>,
    /// Memory in use without garbage, bytes.
    loaded: usize,
}

impl Engine {
    /// Compiles a policy and runs its program once.
    ///
    /// # Errors
    /// The contract refuses the policy, its source does not compile, or its program does not
    /// return a function.
    pub fn load(spec: &Spec) -> Result<Self, LoadError> {
        Self::load_as(spec, Counting::Off)
    }

    /// As [`Self::load`], and counts which lines run: [`Self::lines`]. Steps and answers are the
    /// same.
    ///
    /// # Errors
    /// As of [`Self::load`].
    pub fn load_counting(spec: &Spec) -> Result<Self, LoadError> {
        Self::load_as(spec, Counting::On)
    }

    fn load_as(spec: &Spec, counting: Counting) -> Result<Self, LoadError> {
        spec.check()?;
        let refused = syntax::lint(&spec.source)
            .into_iter()
            .find(|finding| finding.is_refused);
        if let Some(finding) = refused {
            return Err(LoadError {
                line: finding.line,
                rule: format!("{}: write {}", finding.rule, finding.instead),
            });
        }
        let state = State::load(&spec.source, counting)?;
        let source = spec.source.clone();
        Ok(Self { source, state })
    }

    /// Asks the policy. `now` is on the clock of the past's samples.
    ///
    /// # Errors
    /// The call broke its budget or failed, or the contract refuses its answer.
    pub fn ask(&self, input: &Input, past: &History, now: Seconds) -> Result<Evaluation, Failed> {
        let question = Question { input, past, now };
        self.evaluate(&question, Answer::read)
    }

    /// Asks a policy of sets, as [`Self::ask`].
    ///
    /// # Errors
    /// As of [`Self::ask`].
    pub fn ask_sets(
        &self,
        input: &SetInput,
        past: &History,
        now: Seconds,
    ) -> Result<Evaluation<SetAnswer>, Failed> {
        let facts = input.facts();
        let question = Question { input, past, now };
        self.evaluate(&question, |value| SetAnswer::read(value, &facts))
    }

    fn evaluate<I: Serialize, A>(
        &self,
        question: &Question<'_, I>,
        read: impl Fn(&Json) -> Result<A, Refusal>,
    ) -> Result<Evaluation<A>, Failed> {
        if self.state.garbage() > SLACK {
            self.state.tidy();
        }
        let outcome = self.state.call(question, MAX_MEMORY - SLACK, &read);
        if !matches!(&outcome, Err(failed) if failed.fault == Fault::Memory) {
            return outcome;
        }
        // Near the limit garbage could decide. A new interpreter has none.
        let state = State::load(&self.source, Counting::Off).map_err(|error| Failed {
            fault: Fault::Syntax,
            text: error.to_string(),
        })?;
        state.call(question, MAX_MEMORY, &read)
    }

    /// Frees the memory of earlier calls where enough has gathered. Called between two questions it
    /// saves [`Self::ask`] from doing it.
    pub fn tidy(&self) {
        if self.state.garbage() > SLACK / 2 {
            self.state.tidy();
        }
    }

    /// Lines of the source that hold a statement, and whether it has run. Empty unless lines are
    /// counted.
    #[must_use]
    pub fn lines(&self) -> BTreeMap<u32, bool> {
        let mut lines = BTreeMap::new();
        self.state.program.coverage(|function| {
            for (line, hits) in (0..).zip(&function.hits) {
                // -1 stands for a line without a statement.
                if *hits >= 0 {
                    *lines.entry(line).or_default() |= *hits > 0;
                }
            }
        });
        lines
    }

    /// Memory that the interpreter has in use, garbage included, bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.state.lua.used_memory()
    }
}

/// Whether lines that run are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counting {
    Off,
    On,
}

impl Counting {
    /// Level of the compiler's coverage.
    fn level(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::On => 1,
        }
    }
}

impl State {
    fn load(source: &str, counting: Counting) -> Result<Self, LoadError> {
        Self::try_load(source, counting).map_err(|error| LoadError::of(&error))
    }

    fn try_load(source: &str, counting: Counting) -> mlua::Result<Self> {
        let lua = globals::interpreter()?;
        lua.gc_stop();
        let steps = Steps::default();
        let now = Rc::default();
        past::register(&lua, &now, &steps)?;
        let program = lua
            .load(source)
            .set_name(format!("={CHUNK}"))
            .set_mode(ChunkMode::Text)
            .set_compiler(globals::compiler().set_coverage_level(counting.level()))
            .into_function()?;
        steps.count(&lua);
        let mut state = Self {
            lua,
            program,
            steps,
            now,
            loaded: 0,
        };
        state.limit(Some(MAX_MEMORY))?;
        state.function()?;
        state.limit(None)?;
        state.tidy();
        state.loaded = state.lua.used_memory();
        Ok(state)
    }

    /// Runs the program.
    fn function(&self) -> mlua::Result<Function> {
        match self.program.call(())? {
            Value::Function(function) => Ok(function),
            other => Err(mlua::Error::RuntimeError(format!(
                "{CHUNK}:1: the program returns a {}: write return function(i) … end",
                other.type_name()
            ))),
        }
    }

    /// Bounds the memory by so much more than is in use.
    fn limit(&self, more: Option<usize>) -> mlua::Result<()> {
        let limit = more.map_or(0, |more| self.lua.used_memory() + more);
        self.lua.set_memory_limit(limit).map(drop)
    }

    fn garbage(&self) -> usize {
        self.lua.used_memory().saturating_sub(self.loaded)
    }

    fn tidy(&self) {
        // One collection is enough, because none is under way. It starts the collector again.
        let _ = self.lua.gc_collect();
        self.lua.gc_stop();
    }

    /// Asks, with so much memory beyond the question.
    fn call<I: Serialize, A>(
        &self,
        question: &Question<'_, I>,
        memory: usize,
        read: &impl Fn(&Json) -> Result<A, Refusal>,
    ) -> Result<Evaluation<A>, Failed> {
        self.steps.reset();
        self.now.set(question.now);
        let outcome = self.lua.scope(|scope| {
            let past = scope.create_any_userdata_ref(question.past)?;
            let table = question::table(&self.lua, question.input, past)?;
            self.limit(Some(memory))?;
            let values: MultiValue = self.function()?.call(table)?;
            Ok(one(&values).and_then(|value| read(&value)))
        });
        match self.limit(None).and(outcome) {
            Ok(answer) => Ok(Evaluation {
                answer: answer?,
                steps: self.steps.taken(),
            }),
            Err(error) => Err(Failed::of(&error, &self.steps)),
        }
    }
}

/// The one value that a policy returned.
fn one(values: &MultiValue) -> Result<Json, Refusal> {
    if values.len() > 1 {
        let count = format!("{} values", values.len());
        return Err(Refusal::of("answer", count, "one table"));
    }
    let value = values.front().unwrap_or(&Value::Nil);
    answer::read(value)
}

pub(crate) fn version() -> String {
    let version = Lua::new_with(StdLib::NONE, LuaOptions::default())
        .and_then(|lua| lua.globals().raw_get::<String>("_VERSION"));
    version.unwrap_or_else(|_| "Luau".to_owned())
}
