//! Converts a TOML table into a checked [`Recipe`].

use protocol::image::Digest;
use toml::Table;

use super::fields::Fields;
use super::model::{
    BinaryRecipe, DebianRecipe, GuestRecipe, KernelRecipe, PortRecipe, PostgresRecipe, Recipe,
    RecipeContent, RoleRecipe, RuntimeRecipe, ServiceRecipe, SuiteRecipe, UserRecipe,
};
use super::problem::Problem;
use super::rules::{
    ABSOLUTE, Problems, RELATIVE, SETTING, WORD, check, is_absolute_path, is_image_name,
    is_package_name, is_relative_path, is_setting_name, is_word, unique,
};
use super::users::check_users;

/// Supported version of the format.
const FORMAT: u32 = 1;

/// Longest kernel command line on x86, in bytes.
const CMDLINE_BYTES: usize = 2047;

/// First major version of PostgreSQL with grants on settings.
const ROLES_SINCE: u32 = 15;

pub(super) fn recipe(table: Table, sha256: Digest) -> Result<Recipe, Problems> {
    let mut problems = Vec::new();
    let p = &mut problems;
    let mut top = Fields::new("", table);
    top.number("format", FORMAT..=FORMAT, None, p);
    let name = top.needed_text("name", p);
    check(
        p,
        "name",
        &name,
        is_image_name,
        "must be lower-case words of a-z, 0-9, '.', '_', '-' joined by '/', with an optional ':tag'",
    );
    let description = top.needed_text("description", p);
    let debian = top.table("debian", p);
    let debian = match debian {
        Some(fields) => Some(debian_part(fields, p)),
        None => {
            p.push(top.missing("debian"));
            None
        }
    };
    let prune = top.texts("prune", p);
    for path in &prune {
        check(p, "prune", path, is_relative_path, RELATIVE);
    }
    let guest = top.table("guest", p).map(|fields| guest_part(fields, p));
    let runtime = top
        .table("runtime", p)
        .map(|fields| runtime_part(fields, p));
    let content = match (guest, runtime) {
        (Some(guest), None) => Some(RecipeContent::Guest(Box::new(guest))),
        (None, Some(runtime)) => Some(RecipeContent::Runtime(runtime)),
        (guest, _) => {
            let problem = if guest.is_some() {
                "are both given"
            } else {
                "are both missing"
            };
            p.push(Problem {
                at: "guest and runtime".into(),
                problem: problem.into(),
                rule: "exactly one of the two tables says what is built".into(),
            });
            None
        }
    };
    top.finish(p);
    match (debian, content, problems.is_empty()) {
        (Some(debian), Some(content), true) => Ok(Recipe {
            name,
            description,
            sha256,
            debian,
            prune,
            content,
        }),
        _ => Err(problems),
    }
}

fn debian_part(mut fields: Fields, p: &mut Problems) -> DebianRecipe {
    let mut suites = Vec::new();
    for mut suite in fields.tables("suites", p) {
        let name = suite.needed_text("name", p);
        check(p, &suite.at("name"), &name, is_word, WORD);
        let prefer = suite.text("prefer", p);
        suite.finish(p);
        suites.push(SuiteRecipe { name, prefer });
    }
    if suites.is_empty() {
        p.push(fields.missing("suites"));
    }
    let packages = fields.texts("packages", p);
    if packages.is_empty() {
        p.push(fields.missing("packages"));
    }
    let assume_installed = fields.texts("assume_installed", p);
    for package in packages.iter().chain(&assume_installed) {
        check(
            p,
            "debian.packages",
            package,
            is_package_name,
            "must be a Debian package name: a-z, 0-9, '+', '-', '.'",
        );
    }
    let security_updates = fields.flag("security_updates", p);
    fields.finish(p);
    DebianRecipe {
        suites,
        packages,
        assume_installed,
        security_updates,
    }
}

fn guest_part(mut fields: Fields, p: &mut Problems) -> GuestRecipe {
    let disk_mib = fields.number("disk_mib", 64..=1 << 20, None, p);
    let hostname = fields
        .text("hostname", p)
        .unwrap_or_else(|| "guest".to_owned());
    check(p, "guest.hostname", &hostname, is_word, WORD);
    let ready_line = fields
        .text("ready_line", p)
        .unwrap_or_else(|| "READY".to_owned());
    let kernel = match fields.table("kernel", p) {
        Some(kernel) => kernel_part(kernel, p),
        None => {
            p.push(fields.missing("kernel"));
            kernel_part(Fields::new("guest.kernel", Table::new()), &mut Vec::new())
        }
    };
    let ports = fields
        .tables("ports", p)
        .into_iter()
        .map(|port| port_part(port, p))
        .collect();
    let sysctl = fields.settings("sysctl", p);
    let users = fields
        .tables("users", p)
        .into_iter()
        .map(|user| user_part(user, p))
        .collect();
    let postgres = fields
        .table("postgres", p)
        .map(|postgres| postgres_part(postgres, p));
    let services: Vec<_> = fields
        .tables("services", p)
        .into_iter()
        .map(|s| service_part(s, p))
        .collect();
    let binaries = fields
        .tables("binaries", p)
        .into_iter()
        .map(|b| binary_part(b, p))
        .collect();
    fields.finish(p);
    unique(
        p,
        "guest.services",
        services.iter().map(|s| s.name.as_str()),
    );
    let guest = GuestRecipe {
        disk_mib,
        kernel,
        hostname,
        ports,
        sysctl,
        users,
        postgres,
        services,
        binaries,
        ready_line,
    };
    check_users(&guest, p);
    guest
}

fn kernel_part(mut fields: Fields, p: &mut Problems) -> KernelRecipe {
    let kernel = KernelRecipe {
        boot_modules: fields.texts("boot_modules", p),
        modules: fields.texts("modules", p),
        late_modules: fields.texts("late_modules", p),
        cmdline: fields.needed_text("cmdline", p),
        cmdline_tcg: fields.text("cmdline_tcg", p).unwrap_or_default(),
    };
    let modules = kernel.boot_modules.iter().chain(&kernel.modules);
    for module in modules.chain(&kernel.late_modules) {
        check(p, "guest.kernel.modules", module, is_word, WORD);
    }
    for (key, line) in [
        ("cmdline", &kernel.cmdline),
        ("cmdline_tcg", &kernel.cmdline_tcg),
    ] {
        let fits = |line: &str| line.len() <= CMDLINE_BYTES && !line.contains(['\n', '\0']);
        check(
            p,
            &fields.at(key),
            line,
            fits,
            "must be one line of at most 2047 bytes",
        );
    }
    fields.finish(p);
    kernel
}

fn port_part(mut fields: Fields, p: &mut Problems) -> PortRecipe {
    let name = fields.needed_text("name", p);
    check(p, &fields.at("name"), &name, is_word, WORD);
    let port = fields.number("port", 1..=65535, None, p);
    fields.finish(p);
    PortRecipe {
        name,
        port: u16::try_from(port).unwrap_or(u16::MAX),
    }
}

fn user_part(mut fields: Fields, p: &mut Problems) -> UserRecipe {
    let name = fields.needed_text("name", p);
    check(p, &fields.at("name"), &name, is_word, WORD);
    let id = fields.number("id", 100..=999, None, p);
    let home = fields
        .text("home", p)
        .unwrap_or_else(|| "/nonexistent".to_owned());
    check(p, &fields.at("home"), &home, is_absolute_path, ABSOLUTE);
    fields.finish(p);
    UserRecipe { name, id, home }
}

fn postgres_part(mut fields: Fields, p: &mut Problems) -> PostgresRecipe {
    let version = fields.number("version", 13..=18, None, p);
    let cgroup = fields
        .text("cgroup", p)
        .unwrap_or_else(|| "postgres".to_owned());
    check(p, &fields.at("cgroup"), &cgroup, is_word, WORD);
    let bench_scale = fields.number("bench_scale", 0..=1000, Some(0), p);
    let settings = fields.settings("settings", p);
    for (name, value) in &settings {
        let at = fields.at(&format!("settings.{name}"));
        check(p, &at, name, is_setting_name, SETTING);
        check(
            p,
            &at,
            value,
            |v| !v.contains(['\n', '\0']),
            "must be one line",
        );
    }
    let monitor = fields.table("monitor", p).map(|role| role_part(role, p));
    if monitor.is_some() && version < ROLES_SINCE {
        p.push(Problem {
            at: fields.at("monitor"),
            problem: format!("is given for version {version}"),
            rule: format!("settings can be granted since version {ROLES_SINCE}"),
        });
    }
    fields.finish(p);
    PostgresRecipe {
        version,
        cgroup,
        bench_scale,
        settings,
        monitor,
    }
}

fn role_part(mut fields: Fields, p: &mut Problems) -> RoleRecipe {
    let name = fields.needed_text("name", p);
    let is_role = |text: &str| {
        let letter = |c: char| c.is_ascii_lowercase() || c == '_';
        text.starts_with(letter)
            && text.len() <= 63
            && text.chars().all(|c| letter(c) || c.is_ascii_digit())
    };
    check(
        p,
        &fields.at("name"),
        &name,
        is_role,
        "must be a role's name: a-z, 0-9, '_', not beginning with a digit",
    );
    let user = fields.needed_text("user", p);
    check(p, &fields.at("user"), &user, is_word, WORD);
    let settings = fields.texts("settings", p);
    for setting in &settings {
        check(p, &fields.at("settings"), setting, is_setting_name, SETTING);
    }
    fields.finish(p);
    RoleRecipe {
        name,
        user,
        settings,
    }
}

fn service_part(mut fields: Fields, p: &mut Problems) -> ServiceRecipe {
    let name = fields.needed_text("name", p);
    check(p, &fields.at("name"), &name, is_word, WORD);
    let command = fields.texts("command", p);
    let at = fields.at("command");
    match command.first() {
        None => p.push(fields.missing("command")),
        Some(program) => check(p, &at, program, is_absolute_path, ABSOLUTE),
    }
    for word in &command {
        check(
            p,
            &at,
            word,
            |w| !w.contains(['\n', '\0']),
            "words must be one line each",
        );
    }
    let user = fields.text("user", p).unwrap_or_else(|| "root".to_owned());
    let cgroup = fields
        .text("cgroup", p)
        .unwrap_or_else(|| "system".to_owned());
    check(p, &fields.at("cgroup"), &cgroup, is_word, WORD);
    let directory = fields.text("directory", p);
    if let Some(directory) = &directory {
        check(
            p,
            &fields.at("directory"),
            directory,
            is_absolute_path,
            ABSOLUTE,
        );
    }
    let owns = fields.texts("owns", p);
    for file in &owns {
        check(p, &fields.at("owns"), file, is_absolute_path, ABSOLUTE);
    }
    let after_ready = fields.flag("after_ready", p);
    fields.finish(p);
    ServiceRecipe {
        name,
        command,
        user,
        cgroup,
        directory,
        owns,
        after_ready,
    }
}

fn binary_part(mut fields: Fields, p: &mut Problems) -> BinaryRecipe {
    let name = fields.needed_text("name", p);
    check(p, &fields.at("name"), &name, is_word, WORD);
    let path = fields.needed_text("path", p);
    check(p, &fields.at("path"), &path, is_absolute_path, ABSOLUTE);
    fields.finish(p);
    BinaryRecipe { name, path }
}

fn runtime_part(mut fields: Fields, p: &mut Problems) -> RuntimeRecipe {
    let runtime = RuntimeRecipe {
        qemu_at_least: fields.number("qemu_at_least", 1..=999, None, p),
        programs: fields.texts("programs", p),
        keep: fields.texts("keep", p),
        firmware: fields.texts("firmware", p),
        modules: fields.needed_text("modules", p),
    };
    if runtime.programs.is_empty() {
        p.push(fields.missing("programs"));
    }
    for path in runtime
        .programs
        .iter()
        .chain(&runtime.keep)
        .chain(&runtime.firmware)
    {
        check(p, "runtime", path, is_relative_path, RELATIVE);
    }
    fields.finish(p);
    runtime
}
