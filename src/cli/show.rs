//! `npyfs show`: an array at a glance: its ends as NumPy prints them, statistics, a histogram, a picture; a store or a
//! directory by an overview of what is in it, and a data frame by its first rows.
//!
//! Only the ends of an array are read at random. One pass finds everything else, in memory that does not depend on the
//! size of the array.

mod edges;
mod float;
mod frame;
mod pass;
mod picture;
mod plain;
mod printed;
mod statistics;
mod tally;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::termios::tcgetwinsize;
use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use super::CliError;
use super::figures::Table;
use super::output::{Report, has_colour, print, print_json};
use super::overview::{self, Facts};
use super::place::{Place, places};
use super::progress::Progress;
use super::store::StoreArgs;
use npyfs_base::error::Error;
use npyfs_base::npy::parse::Header;
use npyfs_base::printable;
use npyfs_core::tree::{Directory, Node};
use npyfs_io::content::{Content, npy_header};

use pass::{LARGEST, Visitor};
use picture::{Palette, Picture};
use statistics::{Column, Statistics, columns, short};

/// Lines and columns of a terminal that does not say how large it is.
const SCREEN: (u64, u64) = (24, 80);

/// Lines of a tree on the smallest terminal.
const FEWEST: u64 = 5;

/// Columns of a picture at most.
const WIDEST: u64 = 120;

/// Rows and columns of the picture in a file.
const PNG_SIZE: (u64, u64) = (1024, 1024);

/// Show a store at a glance: what is in it; an array: its ends as NumPy prints them, statistics, a histogram.
///
/// A store or a directory is shown by its kind, its axes and a tree with type, shape, stored size and units, as deep as
/// the terminal has room for; a data frame by its first rows. In the place of STORE and PATH also a mount or something
/// in it, STORE:/PATH, STORE/PATH, or an .npy or .npz file.
///
/// Least, greatest and mean leave NaN out. Bins of the histogram begin at multiples of their width, a power of two. A
/// matrix is drawn on terminals with colours; each pixel is the mean of its elements. JSON is {"dtype", "shape",
/// "bytes", "elements", "printed", "statistics"}, or "members" with the statistics of each member of a structured type;
/// of a directory {"kind", "axes", "file", "size", "entries"}, with {"name", "kind", "dtype", "shape", "stored_size",
/// "units", "entries"} of each entry, those of the directory itself unless a depth is asked for. The JSON of several
/// paths is a list.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The ends only: nothing else is read
    #[arg(long)]
    no_stats: bool,

    /// Draw a picture also where the output is no terminal; of an array with more axes the last two
    #[arg(long)]
    image: bool,

    /// Write the picture to a file, in PNG
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,

    /// Show this many levels of a directory, however many lines they take
    #[arg(long, value_name = "N", conflicts_with = "all", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,

    /// Show everything in a directory, at all depths
    #[arg(long)]
    all: bool,

    /// JSON
    #[arg(long, conflicts_with = "image")]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// Files or directories, as a mount would name them; * and ? are wildcards
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let places = places(&args.store, &args.paths)?;
    if let [place] = &places[..] {
        return match place.node(true)? {
            Node::Directory(dir) => directory(args, place, &dir),
            node => inspect(args, place, &node)?.print(args.json),
        };
    }
    if args.png.is_some() {
        return Err(CliError::usage("--png FILE takes the picture of one array"));
    }
    let mut all = Vec::new();
    for (number, place) in places.iter().enumerate() {
        let node = place.node(true)?;
        if !args.json {
            let gap = if number > 0 { "\n" } else { "" };
            let name = printable::name(place.shown.as_os_str().as_bytes());
            print(format!("{gap}{name}:\n").as_bytes())?;
        }
        match node {
            Node::Directory(_) if args.json => {
                return Err(place.failed(&"is a directory: its JSON comes alone"));
            }
            Node::Directory(dir) => directory(args, place, &dir)?,
            node if args.json => all.push(inspect(args, place, &node)?),
            node => inspect(args, place, &node)?.print(false)?,
        }
    }
    match args.json {
        true => print_json(&all),
        false => Ok(()),
    }
}

/// Shows a directory, or a store as a whole.
fn directory(args: &Args, place: &Place, dir: &Arc<dyn Directory>) -> Result<(), CliError> {
    if args.image || args.png.is_some() {
        return Err(no_picture(place.named()));
    }
    let looking = Progress::waiting("looking at the store");
    let facts = Facts::find(&**dir).map_err(|e| place.failed(&e))?;
    drop(looking);
    let depth = match (args.depth, args.all) {
        (Some(depth), _) => Some(depth as usize),
        (None, true) => Some(usize::MAX),
        (None, false) => None,
    };
    if args.json {
        return overview::print_as_json(dir, &facts, depth.unwrap_or(1));
    }
    let head = facts.lines();
    print(format!("{head}\n").as_bytes())?;
    let (lines, columns) = screen();
    if depth.is_none() && frame::is_frame(&facts.info) {
        let rows = frame::head(dir, &facts.info, columns as usize);
        if let Some(rows) = rows.map_err(|e| place.failed(&e))? {
            return print(rows.as_bytes());
        }
    }
    // Below the facts, an empty line, and above the next prompt.
    let taken = head.lines().count() as u64 + 2;
    let room = lines.saturating_sub(taken).max(FEWEST);
    let room = overview::Depth::Lines(room as usize);
    overview::print_tree(dir, depth.map_or(room, overview::Depth::Levels))
}

/// What is shown of a file.
#[derive(Serialize)]
#[serde(untagged)]
enum ShownFile {
    Array(Box<ArrayReport>),
    Other(plain::FileSummary),
}

impl Report for ShownFile {
    fn text(&self) -> String {
        match self {
            Self::Array(array) => array.text(),
            Self::Other(shown) => shown.text(),
        }
    }
}

/// Looks at a file.
fn inspect(args: &Args, place: &Place, node: &Node) -> Result<ShownFile, CliError> {
    let failed = |e: Error| place.failed(&e);
    let Node::File(file) = node else {
        return Err(place.failed(&"is a link that leads nowhere"));
    };
    let content = file.open().map_err(failed)?;
    let header = npy_header(&*content).map_err(failed)?.ok();
    let is_array = |header: &Header| header.check_len(content.len()).is_ok();
    let header = header.filter(is_array);
    match header {
        Some(header) => {
            let report = array(args, place, &*content, &header, failed)?;
            Ok(ShownFile::Array(Box::new(report)))
        }
        None => Ok(ShownFile::Other(show_plain_file(
            args, place, &content, failed,
        )?)),
    }
}

/// Shows a file that is no array.
fn show_plain_file(
    args: &Args,
    place: &Place,
    content: &Arc<dyn Content>,
    failed: impl Fn(Error) -> CliError,
) -> Result<plain::FileSummary, CliError> {
    if args.image || args.png.is_some() {
        return Err(no_picture(place.named()));
    }
    let is_archive = place
        .shown
        .extension()
        .is_some_and(|suffix| suffix == "npz");
    let shown = match is_archive {
        true => plain::archive(content),
        false => plain::head(&**content),
    };
    shown.map_err(failed)
}

fn no_picture(path: &Path) -> CliError {
    CliError::usage(format!(
        "{}: no picture: that takes numbers along two axes",
        path.display()
    ))
}

/// The pictures that are asked for.
struct Pictures {
    terminal: Option<(Picture, Palette)>,
    file: Option<Picture>,
}

impl Pictures {
    fn new(args: &Args, path: &Path, header: &Header) -> Result<Self, CliError> {
        let colours = has_colour();
        // A matrix by columns is drawn as one by rows, and turned; of more axes the last two do not lie together.
        let by_columns = header.fortran_order;
        let turned = Header {
            shape: header.shape.iter().rev().copied().collect(),
            ..header.clone()
        };
        let draw = |(rows, columns)| match (by_columns, header.shape.len()) {
            (false, _) => Picture::new(header, (rows, columns)),
            (true, 2) => Picture::new(&turned, (columns, rows)),
            (true, _) => None,
        };
        let is_matrix = header.shape.len() == 2 && header.shape.iter().all(|&len| len > 1);
        let is_drawn = args.image || (is_matrix && colours && !args.no_stats && !args.json);
        let terminal = is_drawn.then(|| draw(room())).flatten();
        let file = args.png.as_ref().map(|_| draw(PNG_SIZE));
        if (args.image && terminal.is_none()) || matches!(file, Some(None)) {
            return Err(no_picture(path));
        }
        Ok(Self {
            terminal: terminal.map(|picture| (picture, Palette::of_terminal(colours))),
            file: file.flatten(),
        })
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Picture> {
        let terminal = self.terminal.as_mut().map(|(picture, _)| picture);
        terminal.into_iter().chain(&mut self.file)
    }
}

/// Returns the lines and columns of the terminal, or of a usual one.
fn screen() -> (u64, u64) {
    let size = io::stdout()
        .is_terminal()
        .then(|| tcgetwinsize(io::stdout()));
    match size {
        Some(Ok(size)) if size.ws_row > 1 && size.ws_col > 0 => {
            (size.ws_row.into(), size.ws_col.into())
        }
        _ => SCREEN,
    }
}

/// Returns how many pixels there is room for on the terminal: rows, of which two share a line, and columns.
fn room() -> (u64, u64) {
    let (lines, columns) = screen();
    (2 * (lines - 1), columns.min(WIDEST))
}

/// Shows an array.
fn array(
    args: &Args,
    place: &Place,
    content: &dyn Content,
    header: &Header,
    failed: impl Fn(Error) -> CliError,
) -> Result<ArrayReport, CliError> {
    let mut pictures = Pictures::new(args, &place.shown, header)?;
    let printed = edges::print(content, header).map_err(&failed)?;
    let size = header.dtype.size() as u64;
    let count = header.len.checked_div(size).unwrap_or(0);
    let is_small = header.dtype.size() <= LARGEST;
    let (mut columns, has_more) = match args.no_stats || !is_small {
        true => (Vec::new(), false),
        false => columns(&header.dtype),
    };
    let places = match columns.is_empty() {
        true => pictures
            .all()
            .next()
            .map_or(0..0, |picture| picture.places()),
        false => 0..count,
    };
    let progress = Progress::bytes("reading", places.end.saturating_mul(size));
    let mut visitors: Vec<&mut dyn Visitor> = Vec::new();
    if !columns.is_empty() {
        visitors.push(&mut columns);
    }
    visitors.extend(pictures.all().map(|picture| picture as &mut dyn Visitor));
    let done = pass::run(content, header, places, &mut visitors, &progress);
    drop(progress);
    done.map_err(failed)?;
    if header.fortran_order {
        pictures.all().for_each(Picture::turn);
    }
    if let (Some(file), Some(picture)) = (&args.png, &pictures.file) {
        picture
            .write(file)
            .map_err(|e| CliError::object(format!("{}: {e}", file.display())))?;
    }
    let mut report = ArrayReport::new(header, printed, &columns);
    report.has_more_members = has_more;
    report.is_too_large = !is_small && !args.no_stats;
    if let (false, Some((picture, palette))) = (args.json, &pictures.terminal) {
        report.picture = Some(format!("{}{}", picture.lines(*palette), legend(picture)));
    }
    Ok(report)
}

/// Returns the line below a picture: what its colours say, and how many elements a pixel stands for.
fn legend(picture: &Picture) -> String {
    let range = picture.range().map_or_else(String::new, |(least, most)| {
        format!("dark {} to bright {}", short(least), short(most))
    });
    match picture.scale() {
        (1, 1) => format!("{range}\n"),
        (rows, columns) => format!("{range}; a pixel is the mean of {rows} x {columns}\n"),
    }
}

/// All that is shown of an array. The fields of its JSON stand in the order of their names.
#[derive(Serialize)]
struct ArrayReport {
    bytes: u64,
    dtype: Json,
    elements: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "by_name")]
    members: Vec<Member>,
    /// The ends, as NumPy prints them.
    printed: String,
    shape: Vec<u64>,
    /// The statistics of plain elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    statistics: Option<Statistics>,
    #[serde(skip)]
    header: Header,
    #[serde(skip)]
    has_more_members: bool,
    /// There are no statistics because the elements are too large.
    #[serde(skip)]
    is_too_large: bool,
    /// The picture for the terminal, with its legend.
    #[serde(skip)]
    picture: Option<String>,
}

/// A member of a structured type.
struct Member {
    name: String,
    dtype: String,
    statistics: Statistics,
}

/// Writes the statistics of members as a map, in which the last of several members of one name counts.
fn by_name<S: Serializer>(members: &[Member], to: S) -> Result<S::Ok, S::Error> {
    let members = members.iter();
    let members = members.map(|member| (&member.name, &member.statistics));
    members.collect::<BTreeMap<_, _>>().serialize(to)
}

impl ArrayReport {
    fn new(header: &Header, printed: String, columns: &[Column]) -> Self {
        let (statistics, members) = match columns {
            [one] if one.name.is_empty() => (Some(Statistics::new(one)), Vec::new()),
            all => {
                let member = |column: &Column| Member {
                    name: column.name.clone(),
                    dtype: column.dtype.to_string(),
                    statistics: Statistics::new(column),
                };
                (None, all.iter().map(member).collect())
            }
        };
        Self {
            bytes: header.len,
            dtype: header.dtype.json(),
            elements: plain::elements(header),
            members,
            printed,
            shape: header.shape.clone(),
            statistics,
            header: header.clone(),
            has_more_members: false,
            is_too_large: false,
            picture: None,
        }
    }

    /// Returns the lines about the statistics of all members, one for each.
    fn members(&self) -> String {
        let mut table = Table::default();
        for member in &self.members {
            let line = member.statistics.line();
            table.push(
                printable::line(&member.name),
                format!("{:<5}  {line}", member.dtype),
            );
        }
        let dots = if self.has_more_members { "...\n" } else { "" };
        format!("{}{dots}", table.lines(0))
    }
}

impl Report for ArrayReport {
    fn text(&self) -> String {
        let mut text = format!("{}\n\n{}\n", plain::line_of(&self.header), self.printed);
        // An array without elements has nothing to tell.
        if self.bytes > 0 {
            if let Some(statistics) = &self.statistics {
                text += &format!("\n{}", statistics.text());
            } else if !self.members.is_empty() {
                text += &format!("\n{}", self.members());
            }
        }
        if self.is_too_large {
            text += "\nno statistics of elements this large\n";
        }
        if let Some(picture) = &self.picture {
            text += &format!("\n{picture}");
        }
        text
    }
}
