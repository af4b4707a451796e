//! The next revision of an environment: program, environment object and `ControllerRevision`.

use fleet_store::{KeptRevision, environment_object, revision_object};
use protocol::fleet::{
    EnvironmentSpec, EnvironmentType, Resolved, RevisionData, Source, revision_name,
};
use protocol::parts::PartName;
use serde_json::{Value, json};

use super::args::{SpecArgs, TimesArgs, VersionArgs};
use super::channel::CHANNEL;
use super::objects::{ENVIRONMENT, find_env, labels, list_envs, revisions_of};
use super::program;
use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::view::fleet::Env;

/// What an environment is to become.
pub(super) struct Definition<'a> {
    pub(super) key: (&'a str, &'a str),
    /// The environment's part, if it is new.
    pub(super) part: Option<PartName>,
    pub(super) version: Option<&'a VersionArgs>,
    /// Channel to follow, in place of a version.
    pub(super) channel: Option<&'a str>,
    pub(super) spec: &'a SpecArgs,
    /// Type of a new environment, unless it is that of its part.
    pub(super) kind: Option<EnvironmentType>,
    /// When an environment of the type `Cron` verifies.
    pub(super) times: &'a TimesArgs,
}

/// Checked objects that are not written.
pub(super) struct Draft {
    before: Option<Env>,
    object: Value,
    data: RevisionData,
    revisions: Vec<KeptRevision>,
}

/// A revision that exists.
pub(super) struct Defined {
    pub(super) revision: String,
    pub(super) data: RevisionData,
    /// Whether it was there before.
    pub(super) is_reused: bool,
}

impl Definition<'_> {
    /// Checks everything that can be checked without a write, the program included.
    pub(super) async fn draft(&self, context: &Context, api: &Api) -> Outcome<Draft> {
        let before = find_env(api, self.key).await?;
        let revisions = match &before {
            Some(_) => revisions_of(api, self.key).await?,
            None => Vec::new(),
        };
        let (spec, object) = self.checked(api, before.as_ref()).await?;
        let resolved = self.resolved(context, &spec, &revisions).await?;
        Ok(Draft {
            before,
            object,
            data: RevisionData { spec, resolved },
            revisions,
        })
    }

    /// The environment, which the API server would take.
    async fn checked(&self, api: &Api, before: Option<&Env>) -> Outcome<(EnvironmentSpec, Value)> {
        let spec = self.spec_over(before)?;
        refuse_overlap(api, self.key, &spec).await?;
        let object = match before {
            Some(env) => {
                let mut object = env.object.clone();
                object["spec"] = json!(spec);
                object
            }
            None => environment_object(self.key.0, self.key.1, &spec),
        };
        send((api, self.key, &object), before.is_some(), true).await?;
        Ok((spec, object))
    }

    /// Checks a new environment whose channel names its versions. The first one makes its first
    /// revision.
    pub(super) async fn follower(&self, api: &Api) -> Outcome<Value> {
        let channel = self.channel.unwrap_or_default();
        api.get(CHANNEL, self.key.0, channel).await?;
        Ok(self.checked(api, None).await?.1)
    }

    fn spec_over(&self, before: Option<&Env>) -> Outcome<EnvironmentSpec> {
        let (namespace, name) = self.key;
        let mut spec = match (before, self.part, self.version) {
            (Some(env), part, _) => {
                let has = env.spec.part;
                if part.is_some_and(|part| part != has) {
                    let what = format!(
                        "fleet environment {namespace}/{name} is about {}",
                        has.as_str()
                    );
                    return Err(Fail::usage(what)
                        .rule("an environment keeps its part")
                        .fix("name another environment: --name ENV"));
                }
                env.spec.clone()
            }
            (None, Some(part), version) => {
                let version = version.map_or("", |version| version.to.as_str());
                EnvironmentSpec::of_release(part, version)
            }
            (None, None, _) => {
                let what = format!("fleet environment {namespace}/{name} does not exist");
                return Err(Fail::not_so(what).fix("see what there is: bellows fleet env list -A"));
            }
        };
        if let Some(version) = self.version {
            spec.source = Source::of_release(&version.to);
        }
        if let Some(channel) = self.channel {
            spec.source = Source::of_channel(channel);
        }
        if let Some(kind) = self.kind {
            spec.r#type = kind;
        }
        self.spec.change(&mut spec);
        self.times.change(&mut spec);
        Ok(spec)
    }

    /// The program of the version: the file that is given, else that of a kept revision.
    async fn resolved(
        &self,
        context: &Context,
        spec: &EnvironmentSpec,
        revisions: &[KeptRevision],
    ) -> Outcome<Resolved> {
        let Some(version) = spec.source.version() else {
            return followed(self.key, revisions);
        };
        if let Some(file) = self.version.and_then(|version| version.program.as_ref()) {
            if spec.part.is_image() {
                let part = spec.part.as_str();
                return Err(
                    Fail::usage(format!("--program: {part} is a container image"))
                        .rule("versions of images come from a channel, which signs their digests")
                        .fix("name the channel: --channel CHANNEL"),
                );
            }
            program::programs(context)?;
            program::check(file, version).await?;
            return Ok(Resolved {
                version: version.to_owned(),
                sha256: program::keep(context, file)?,
                bundle: String::new(),
            });
        }
        let known = revisions
            .iter()
            .find(|one| one.data.resolved.version == version);
        let known = known.map(|one| one.data.resolved.clone());
        known.ok_or_else(|| {
            Fail::usage(format!("no revision has the program of version {version}"))
                .rule("the first revision of a version names the file of its program")
                .fix("name it: --program FILE")
        })
    }
}

/// The program of an environment that follows a channel: that of its newest revision. The fleet
/// makes the next one.
fn followed((namespace, name): (&str, &str), revisions: &[KeptRevision]) -> Outcome<Resolved> {
    let newest = revisions.first().map(|newest| newest.data.resolved.clone());
    newest.ok_or_else(|| {
        Fail::not_so(format!(
            "fleet environment {namespace}/{name} has no revision"
        ))
        .rule("the first version of its channel makes the first revision")
        .fix("see what the channel says: bellows fleet channel show CHANNEL")
    })
}

async fn send(
    (api, (namespace, name), object): (&Api, (&str, &str), &Value),
    exists: bool,
    dry_run: bool,
) -> Outcome<Value> {
    if exists {
        api.replace(ENVIRONMENT, namespace, name, object, dry_run)
            .await
    } else {
        api.create(ENVIRONMENT, namespace, name, object, dry_run)
            .await
    }
}

/// A guest has one environment for each part, beside those that verify.
async fn refuse_overlap(api: &Api, key: (&str, &str), spec: &EnvironmentSpec) -> Outcome {
    if spec.is_cron() {
        return Ok(());
    }
    let others = list_envs(api, Some(key.0)).await?;
    let others = others
        .iter()
        .filter(|one| one.name != key.1 && one.spec.part == spec.part && !one.spec.is_cron());
    let others: Vec<&Env> = others.collect();
    if others.is_empty() {
        return Ok(());
    }
    let vms = api.list(Kind::Vm, Some(key.0)).await?;
    for other in others {
        let both = |vm: &&Value| {
            let labels = labels(vm);
            spec.selector.matches(&labels) && other.spec.selector.matches(&labels)
        };
        let shared = vms.iter().find(both);
        if shared.is_none() && spec.selector != other.spec.selector {
            continue;
        }
        let of = shared.and_then(|vm| vm["metadata"]["name"].as_str());
        let what = format!(
            "--selector: fleet environment {}/{} has the {} of {} already",
            key.0,
            other.name,
            spec.part.as_str(),
            of.map_or_else(|| "the same VMs".to_owned(), |vm| format!("VM {vm}")),
        );
        return Err(Fail::not_so(what)
            .rule("a part of a guest belongs to one environment")
            .fix(format!(
                "change that one: bellows fleet env set {}; or choose other labels: --selector",
                other.name
            )));
    }
    Ok(())
}

impl Draft {
    /// The objects as they would be written.
    pub(super) fn objects(&self) -> (Vec<Value>, String) {
        let mut objects = vec![self.object.clone()];
        let name = match self.same() {
            Some(same) => same.name.clone(),
            None => {
                let revision = revision_object(&self.object, self.next_number(), &self.data);
                objects.push(revision);
                revision_name(self.name(), self.next_number())
            }
        };
        (objects, name)
    }

    fn name(&self) -> &str {
        let name = self.object["metadata"]["name"].as_str();
        name.unwrap_or_default()
    }

    fn same(&self) -> Option<&KeptRevision> {
        self.revisions.iter().find(|one| one.data == self.data)
    }

    fn next_number(&self) -> i64 {
        let newest = self.revisions.first();
        newest.map_or(1, |newest| newest.number.saturating_add(1))
    }

    /// Writes the environment and its revision.
    pub(super) async fn write(self, api: &Api, key: (&str, &str)) -> Outcome<Defined> {
        let is_unchanged = self
            .before
            .as_ref()
            .is_some_and(|env| env.spec == self.data.spec);
        let written = if is_unchanged {
            self.object.clone()
        } else {
            send((api, key, &self.object), self.before.is_some(), false).await?
        };
        if let Some(same) = self.same() {
            return Ok(Defined {
                revision: same.name.clone(),
                data: self.data.clone(),
                is_reused: true,
            });
        }
        let number = self.next_number();
        let name = revision_name(key.1, number);
        let object = revision_object(&written, number, &self.data);
        api.create(Kind::Revision, key.0, &name, &object, false)
            .await?;
        Ok(Defined {
            revision: name,
            data: self.data,
            is_reused: false,
        })
    }
}
