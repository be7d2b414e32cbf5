//! `npyfs show`: an array at a glance: its ends as NumPy prints them, statistics, a histogram, a picture.
//!
//! Only the ends are read at random; everything else is found in one pass, in memory that does not depend on the size
//! of the array.

mod colours;
mod column;
mod distinct;
mod edges;
mod histogram;
mod pass;
mod picture;
mod plain;
mod png_file;
mod printed;
mod report;
mod tally;
mod value;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::termios::tcgetwinsize;
use serde_json::{Map, Value as Json, json};

use super::CliError;
use super::output::{has_colour, print, print_json};
use super::progress::Progress;
use super::store::{StoreArgs, find};
use crate::error::Error;
use crate::io::content::{Content, npy_header};
use crate::npy::parse::Header;
use crate::tree::Node;
use colours::Palette;
use column::{Column, columns};
use pass::{LARGEST, Visitor};
use picture::Picture;
use plain::Shown;

/// Lines and columns of a terminal that does not say how large it is.
const SCREEN: (u64, u64) = (24, 80);

/// Columns of a picture at most.
const WIDEST: u64 = 120;

/// Rows and columns of the picture in a file.
const PNG_SIZE: (u64, u64) = (1024, 1024);

/// Show an array at a glance: its ends as NumPy prints them, statistics, a histogram.
///
/// Least, greatest and mean leave NaN out. Bins of the histogram begin at multiples of their width, a power of two. A
/// matrix is drawn on terminals with colours; each pixel is the mean of its elements. JSON is {"dtype", "shape",
/// "bytes", "elements", "printed", "statistics"}, or "members" with the statistics of each member of a structured type.
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

    /// JSON
    #[arg(long, conflicts_with = "image")]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// The file, as a mount would name it
    path: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let fs = args.store.open()?;
    let path = args.path.as_path();
    let failed = |e: Error| CliError::object(format!("{}: {e}", path.display()));
    let Node::File(file) = find(&fs, path, true)? else {
        return Err(CliError::object(format!(
            "{}: is a directory; npyfs ls lists it",
            path.display()
        )));
    };
    let content = file.open().map_err(failed)?;
    let header = npy_header(&*content).map_err(failed)?.ok();
    let is_array = |header: &Header| header.check_len(content.len()).is_ok();
    let header = header.filter(is_array);
    match header {
        Some(header) => array(args, &*content, &header, failed),
        None => other(args, &content, failed),
    }
}

/// Shows a file that is no array.
fn other(
    args: &Args,
    content: &Arc<dyn Content>,
    failed: impl Fn(Error) -> CliError,
) -> Result<(), CliError> {
    if args.image || args.png.is_some() {
        return Err(no_picture(&args.path));
    }
    let is_archive = args.path.extension().is_some_and(|suffix| suffix == "npz");
    let shown = match is_archive {
        true => plain::archive(content),
        false => plain::head(&**content),
    };
    let Shown { text, json } = shown.map_err(failed)?;
    match args.json {
        true => print_json(&json),
        false => print(text.as_bytes()),
    }
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
    fn new(args: &Args, header: &Header) -> Result<Self, CliError> {
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
            return Err(no_picture(&args.path));
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

/// Returns how many pixels there is room for on the terminal: rows, of which two share a line, and columns.
fn room() -> (u64, u64) {
    let size = io::stdout()
        .is_terminal()
        .then(|| tcgetwinsize(io::stdout()));
    let (lines, columns) = match size {
        Some(Ok(size)) if size.ws_row > 1 && size.ws_col > 0 => {
            (size.ws_row.into(), size.ws_col.into())
        }
        _ => SCREEN,
    };
    (2 * (lines - 1), columns.min(WIDEST))
}

/// Shows an array.
fn array(
    args: &Args,
    content: &dyn Content,
    header: &Header,
    failed: impl Fn(Error) -> CliError,
) -> Result<(), CliError> {
    let mut pictures = Pictures::new(args, header)?;
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
        png_file::write(file, picture)
            .map_err(|e| CliError::object(format!("{}: {e}", file.display())))?;
    }
    match args.json {
        true => print_json(&json_of(header, printed, &columns)),
        false => {
            let mut text = format!("{}\n\n{printed}\n", plain::line_of(header));
            if let Some(statistics) = statistics(header, &columns, has_more) {
                text.push_str(&format!("\n{statistics}"));
            }
            if !is_small && !args.no_stats {
                text.push_str("\nno statistics of elements this large\n");
            }
            if let Some((picture, palette)) = &pictures.terminal {
                text.push_str(&format!("\n{}{}", picture.lines(*palette), legend(picture)));
            }
            print(text.as_bytes())
        }
    }
}

/// Returns the statistics for people, if there are any.
fn statistics(header: &Header, columns: &[Column], has_more: bool) -> Option<String> {
    // Of nothing there is nothing to tell.
    if header.len == 0 {
        return None;
    }
    match columns {
        [] => None,
        [one] if one.name.is_empty() => Some(report::one(one)),
        all => {
            let dots = if has_more { "...\n" } else { "" };
            Some(format!("{}{dots}", report::members(all)))
        }
    }
}

/// Returns the line below a picture: what its colours say, and how many elements a pixel stands for.
fn legend(picture: &Picture) -> String {
    let range = picture.range().map_or_else(String::new, |(least, most)| {
        format!(
            "dark {} to bright {}",
            report::short(least),
            report::short(most)
        )
    });
    match picture.scale() {
        (1, 1) => format!("{range}\n"),
        (rows, columns) => format!("{range}; a pixel is the mean of {rows} x {columns}\n"),
    }
}

fn json_of(header: &Header, printed: String, columns: &[Column]) -> Json {
    let mut map = Map::new();
    let count = header
        .shape
        .iter()
        .fold(1_u64, |n, &dim| n.saturating_mul(dim));
    map.insert("dtype".into(), header.dtype.json());
    map.insert("shape".into(), json!(header.shape));
    map.insert("bytes".into(), json!(header.len));
    map.insert("elements".into(), json!(count));
    map.insert("printed".into(), json!(printed));
    match columns {
        [] => {}
        [one] if one.name.is_empty() => {
            map.insert("statistics".into(), report::json(one));
        }
        all => {
            let members = all
                .iter()
                .map(|column| (column.name.clone(), report::json(column)));
            map.insert("members".into(), Json::Object(members.collect()));
        }
    }
    map.into()
}
