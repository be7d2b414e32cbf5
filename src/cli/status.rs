//! `npyfs status`: the mounts of this user, and what they do: what they show, what was written and is not committed,
//! what they refused, their readers, and their memory and disk.
//!
//! A mount is asked for a limited time, because it may be dead or stuck; what it does not answer is not known, and the
//! mount is listed all the same. Everything that a mount says is taken as text from a stranger.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::cli::figures::{self, Table};
use crate::cli::output::{self, Report, print_json};
use crate::cli::umount::with_timeout;
use crate::cli::users::{self, MountUser, names, users_of};
use crate::cli::{CliError, log};
use crate::mount::fuse::table::{self, Mounted};
use npyfs_base::journal::Line;
use npyfs_base::options::FsOptions;
use npyfs_base::printable::line;

/// The time that a mount may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// List the mounts of this user, or of all users for root, and what they do.
///
/// JSON is a list of {"mount_point", "store", "state": "live", "dead", "stuck" or "closed", "writable", "user",
/// "options", "checkout": {"name", "objects", "deleted", "unsaved", "waiting"}, "refused": {"count", "since"},
/// "readers", "pid", "memory", "cache" and "kept": {"bytes", "limit"}, "remedy"}; what is not known is null.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// JSON
    #[arg(long)]
    json: bool,

    /// These mounts only; or something below them
    #[arg(value_name = "MOUNTPOINT")]
    mount_points: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let failed = |e: io::Error| CliError::mount(format!("the mount table cannot be read: {e}"));
    let mut mounts = table::ours().map_err(failed)?;
    if args.mount_points.is_empty() {
        let me = rustix::process::geteuid();
        let mine = |mounted: &Mounted| mounted.owner.is_none_or(|owner| owner == me.as_raw());
        mounts.retain(|mounted| me.is_root() || mine(mounted));
    } else {
        let named = args.mount_points.iter().map(|given| {
            let path = table::resolve(given).unwrap_or_else(|_| given.clone());
            let path = table::above(&path).unwrap_or(path);
            let found = mounts.iter().find(|mounted| mounted.mount_point == path);
            found.cloned().ok_or_else(|| {
                CliError::mount(format!("{}: no store is mounted there", given.display()))
            })
        });
        mounts = named.collect::<Result<_, _>>()?;
    }
    let all: Vec<MountStatus> = mounts.iter().map(MountStatus::read).collect();
    if args.json {
        return print_json(&all);
    }
    let texts: Vec<String> = all.iter().map(MountStatus::text).collect();
    match texts.is_empty() {
        true => output::print(b"nothing is mounted\n"),
        false => output::print(texts.join("\n").as_bytes()),
    }
}

/// Returns what is said of one mount.
pub fn text_of(mount_point: &Path) -> Option<String> {
    let mounted = table::at(mount_point).ok()??;
    Some(MountStatus::read(&mounted).text())
}

/// Whether a mount answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Live,
    /// The process is gone.
    Dead,
    /// The mount did not answer in time.
    Stuck,
    /// The mount does not let this user in.
    Closed,
}

/// The changes in the checkout of a mount.
#[derive(Debug, Serialize)]
struct CheckoutStatus {
    name: String,
    /// Objects that are stored, but in no commit.
    objects: u64,
    deleted: u64,
    /// Files that are being written, or did not become objects.
    unsaved: u64,
    /// Objects that lack something.
    waiting: u64,
}

/// The requests of programs that were refused.
#[derive(Debug, Serialize)]
struct Refusals {
    count: u64,
    /// The time of the first that the log still has.
    since: Option<String>,
}

/// Room that is taken, and how much there is.
#[derive(Debug, Serialize)]
struct Room {
    bytes: u64,
    limit: u64,
}

impl Room {
    fn parse(json: &Json) -> Option<Self> {
        let number = |key: &str| json[key].as_u64();
        Some(Self {
            bytes: number("bytes")?,
            limit: number("limit")?,
        })
    }

    fn text(&self) -> String {
        let Self { bytes, limit } = self;
        format!("{} of {}", figures::bytes(*bytes), figures::bytes(*limit))
    }
}

/// The facts on a mount.
#[derive(Debug, Serialize)]
struct MountStatus {
    mount_point: String,
    store: String,
    state: State,
    writable: bool,
    user: Option<String>,
    options: Option<Json>,
    checkout: Option<CheckoutStatus>,
    refused: Option<Refusals>,
    readers: Vec<MountUser>,
    pid: Option<u32>,
    /// Bytes of memory of its processes.
    memory: Option<u64>,
    cache: Option<Room>,
    kept: Option<Room>,
    /// The command that ends what is wrong.
    remedy: Option<String>,
}

/// The answer of a mount.
struct Answer {
    status: Json,
    refused: Vec<Line>,
}

fn ask(at: &Path) -> io::Result<Answer> {
    let asked = at.to_owned();
    with_timeout(TIMEOUT, move || {
        let status = std::fs::read(asked.join(".npyfs/status.json"))?;
        Ok(Answer {
            status: serde_json::from_slice(&status)?,
            refused: log::refused(&asked)?,
        })
    })
}

impl MountStatus {
    fn read(mounted: &Mounted) -> Self {
        let at = &mounted.mount_point;
        let answer = ask(at);
        let state = match answer.as_ref().map_err(io::Error::raw_os_error) {
            Ok(_) => State::Live,
            Err(Some(libc::ENOTCONN | libc::ECONNABORTED)) => State::Dead,
            // Others are let in, and are not told what the mount does.
            Err(Some(libc::EACCES | libc::EPERM)) if at.metadata().is_ok() => State::Live,
            Err(Some(libc::EACCES | libc::EPERM)) => State::Closed,
            Err(_) => State::Stuck,
        };
        let remedy = match state {
            State::Dead => Some(format!("npyfs umount {}", at.display())),
            State::Stuck => Some(format!("npyfs umount --lazy {}", at.display())),
            State::Live | State::Closed => None,
        };
        let answer = answer.ok();
        let status = answer.as_ref().map(|answer| &answer.status);
        let pid = status.and_then(|status| u32::try_from(status["pid"].as_u64()?).ok());
        let pid = pid.filter(|&pid| is_npyfs(pid));
        let mut readers = users_of(at);
        readers.retain(|user| Some(user.process) != pid && user.process != std::process::id());
        Self {
            mount_point: at.to_string_lossy().into_owned(),
            store: mounted.source.to_string_lossy().into_owned(),
            state,
            writable: !mounted.read_only,
            user: mounted.owner.map(users::name_of_user),
            options: status.map(options),
            checkout: status.and_then(|status| CheckoutStatus::parse(&status["checkout"])),
            refused: answer.as_ref().map(|answer| Refusals {
                count: answer.refused.iter().map(|line| line.count).sum(),
                since: answer.refused.iter().map(|line| line.time.clone()).min(),
            }),
            readers,
            pid,
            memory: pid.map(memory),
            cache: status.and_then(|status| Room::parse(&status["cache"])),
            kept: status.and_then(|status| Room::parse(&status["kept"])),
            remedy,
        }
    }

    fn state_words(&self) -> String {
        match (self.state, &self.remedy) {
            (State::Live, _) if self.options.is_none() => {
                "live; what it does, its own user alone is told".to_owned()
            }
            (State::Live, _) => "live".to_owned(),
            (State::Closed, _) => "lets its own user in alone".to_owned(),
            (State::Dead, remedy) => format!(
                "dead: its process is gone ({} takes it away)",
                remedy.as_deref().unwrap_or_default()
            ),
            (State::Stuck, remedy) => format!(
                "did not answer within {} seconds ({} takes it away)",
                TIMEOUT.as_secs(),
                remedy.as_deref().unwrap_or_default()
            ),
        }
    }
}

impl Report for MountStatus {
    fn text(&self) -> String {
        let mut table = Table::default();
        table.push("store", line(&self.store));
        if let Some(user) = &self.user {
            table.push("user", line(user));
        }
        let access = if self.writable { "rw" } else { "ro" };
        let options = self.options.as_ref().and_then(Json::as_object);
        let options = options
            .into_iter()
            .flatten()
            .map(|(name, value)| match value {
                Json::Bool(true) => line(name),
                Json::String(text) => line(&format!("{name}={text}")),
                other => line(&format!("{name}={other}")),
            });
        let options: Vec<String> = std::iter::once(access.to_owned()).chain(options).collect();
        table.push("options", options.join(","));
        if let Some(checkout) = &self.checkout {
            table.push("checkout", checkout.text());
        }
        if let Some(Refusals {
            count: count @ 1..,
            since,
        }) = &self.refused
        {
            let since = since
                .as_ref()
                .map(|since| format!(" since {}", line(since)));
            let since = since.unwrap_or_default();
            table.push(
                "refused",
                format!(
                    "{}{since}: npyfs log {} says what",
                    figures::count(*count, "request"),
                    line(&self.mount_point)
                ),
            );
        }
        if !self.readers.is_empty() {
            table.push("readers", line(&names(&self.readers)));
        }
        if let Some(memory) = self.memory {
            table.push("memory", figures::bytes(memory));
        }
        for (name, room) in [("cache", &self.cache), ("kept", &self.kept)] {
            if let Some(room) = room {
                table.push(name, room.text());
            }
        }
        let at = line(&self.mount_point);
        format!("{at}  {}\n{}", line(&self.state_words()), table.lines(2))
    }
}

impl CheckoutStatus {
    fn parse(json: &Json) -> Option<Self> {
        let name = json["name"].as_str()?.to_owned();
        let number = |key: &str| json[key].as_u64().unwrap_or(0);
        let count = |key: &str| json[key].as_array().map_or(0, |list| list.len() as u64);
        Some(Self {
            name,
            objects: number("objects"),
            deleted: number("deleted"),
            unsaved: number("scratch_files").max(count("unfinished")),
            waiting: count("waiting"),
        })
    }

    fn text(&self) -> String {
        let parts = [
            (self.objects, "object", "not committed"),
            (self.deleted, "deletion", "not committed"),
            (self.waiting, "object", "not complete"),
            (self.unsaved, "file", "not saved"),
        ];
        let parts = parts.into_iter().filter(|(count, ..)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(count, one, what)| format!("{} {what}", figures::count(count, one)))
            .collect();
        let name = line(&self.name);
        match parts.is_empty() {
            true => format!("{name}: nothing that is not committed"),
            false => format!("{name}: {}", parts.join(", ")),
        }
    }
}

/// Returns the options that are not as they are by default.
fn options(status: &Json) -> Json {
    let known = FsOptions::default();
    let usual = json!({
        "cache_size": known.cache_size,
        "external": known.external,
        "sep": char::from(known.sep).to_string(),
        "text_limit": known.text_limit(),
        "xattrs": known.xattrs,
        "aligned": known.aligned,
        "strict": known.strict,
    });
    let mut options = serde_json::Map::new();
    let all = status["options"].as_object().into_iter().flatten();
    let whole = ["subpath", "view", "join", "strict"].map(|name| (name, &status[name]));
    let all = all.map(|(name, value)| (name.as_str(), value)).chain(whole);
    for (name, value) in all {
        if !value.is_null() && usual.get(name) != Some(value) {
            options.insert(name.to_owned(), value.clone());
        }
    }
    Json::Object(options)
}

/// Returns whether a process here is one of npyfs: a mount of another PID namespace says a number that means another
/// one.
fn is_npyfs(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim_end() == "npyfs")
}

/// Returns the memory of a process and of its workers.
fn memory(pid: u32) -> u64 {
    let resident = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let workers = tasks.flatten().flat_map(|task| {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let numbers = children.split_whitespace().map(str::to_owned);
        numbers.collect::<Vec<String>>()
    });
    let workers = workers.filter_map(|pid| pid.parse().ok());
    resident(pid) + workers.map(resident).sum::<u64>()
}
