//! A matrix as a picture, for a terminal or as a PNG file: each pixel is the mean of the elements that it stands for,
//! in a colour from dark blue over green to yellow.

use std::io;
use std::ops::Range;
use std::path::Path;

use png::{BitDepth, ColorType, Encoder, EncodingError};
use tempfile::Builder;

use super::pass::Visitor;
use super::statistics::{floats, integers};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_base::npy::parse::Header;

/// Pixels along an axis that are kept where both axes cannot have one scale.
const LEAST: u64 = 16;

/// The end of all colours.
const PLAIN: &str = "\u{1b}[0m";

/// A picture that is being made of the last two axes of an array, at the first entry of all others.
pub(super) struct Picture {
    /// Where pixels begin along both axes, and where the last ones end.
    rows: Vec<u64>,
    columns: Vec<u64>,
    /// The sum and the number of the elements of each pixel that are numbers, row by row.
    pixels: Vec<(f64, f64)>,
    kind: Kind,
    size: usize,
    order: Order,
}

/// Returns as many pixels along both axes as the elements and the room give.
fn fit(rows: u64, columns: u64, room: (u64, u64)) -> (u64, u64) {
    let most = (rows.min(room.0), columns.min(room.1));
    let scale = (rows as f64 / room.0 as f64)
        .max(columns as f64 / room.1 as f64)
        .max(1.0);
    let pixels = |len: u64, most: u64| {
        let pixels = (len as f64 / scale).round() as u64;
        pixels.clamp(most.min(LEAST), most)
    };
    (pixels(rows, most.0), pixels(columns, most.1))
}

/// Returns where `pixels` parts of `len` elements begin, and where the last one ends.
fn bounds(len: u64, pixels: u64) -> Vec<u64> {
    let bound = |at: u64| (u128::from(len) * u128::from(at) / u128::from(pixels)) as u64;
    (0..=pixels).map(bound).collect()
}

impl Picture {
    /// Creates the empty picture of an array, of at most `room` rows and columns; `None` if the array is no matrix of
    /// numbers.
    pub(super) fn new(header: &Header, room: (u64, u64)) -> Option<Self> {
        let &[.., rows, columns] = &header.shape[..] else {
            return None;
        };
        let DType::Scalar {
            kind, size, order, ..
        } = header.dtype
        else {
            return None;
        };
        let is_number = match kind {
            Kind::Bool => true,
            Kind::Int | Kind::Uint => size <= 8,
            Kind::Float | Kind::Complex => true,
            _ => false,
        };
        if !is_number || header.shape.contains(&0) {
            return None;
        }
        let (height, width) = fit(rows, columns, room);
        Some(Self {
            rows: bounds(rows, height),
            columns: bounds(columns, width),
            pixels: vec![(0.0, 0.0); usize::try_from(height.checked_mul(width)?).ok()?],
            kind,
            size,
            order,
        })
    }

    /// Returns the number of pixels in a row, and of rows.
    fn size(&self) -> (usize, usize) {
        (self.columns.len() - 1, self.rows.len() - 1)
    }

    /// Returns the axes of the array: rows and columns.
    fn shape(&self) -> (u64, u64) {
        let last = |bounds: &[u64]| bounds.last().copied().unwrap_or(0);
        (last(&self.rows), last(&self.columns))
    }

    /// Makes rows of columns.
    pub(super) fn turn(&mut self) {
        let (width, height) = self.size();
        let pixels = (0..width).flat_map(|x| (0..height).map(move |y| y * width + x));
        let pixels = pixels.filter_map(|at| self.pixels.get(at).copied());
        self.pixels = pixels.collect();
        std::mem::swap(&mut self.rows, &mut self.columns);
    }

    /// Returns the places of the elements that are shown.
    pub(super) fn places(&self) -> Range<u64> {
        let (rows, columns) = self.shape();
        0..rows.saturating_mul(columns)
    }

    /// Returns how many elements of both axes a pixel stands for, rounded.
    pub(super) fn scale(&self) -> (u64, u64) {
        let ((rows, columns), (width, height)) = (self.shape(), self.size());
        (rows.div_ceil(height as u64), columns.div_ceil(width as u64))
    }

    /// Returns the numbers that elements are.
    fn numbers(&self, bytes: &[u8]) -> Vec<f64> {
        let mut numbers = Vec::new();
        match self.kind {
            Kind::Float => floats(bytes, self.size, self.order, &mut numbers),
            Kind::Complex => {
                floats(bytes, self.size / 2, self.order, &mut numbers);
                let (pairs, _) = numbers.as_chunks::<2>();
                return pairs.iter().map(|[re, im]| re.hypot(*im)).collect();
            }
            Kind::Bool => numbers.extend(bytes.iter().map(|&byte| f64::from(u8::from(byte != 0)))),
            kind => {
                let mut own = Vec::new();
                integers(bytes, kind, self.size, self.order, &mut own);
                let is_wide = kind == Kind::Uint && self.size == 8;
                let offset = if is_wide { 2_f64.powi(63) } else { 0.0 };
                numbers.extend(own.iter().map(|&number| number as f64 + offset));
            }
        }
        numbers
    }

    /// Adds a number to a pixel, `count` times.
    fn add(&mut self, row: usize, column: usize, sum: f64, count: f64) {
        let pixel = self.pixels.get_mut(row * (self.columns.len() - 1) + column);
        if let Some((all, counted)) = pixel {
            *all += sum;
            *counted += count;
        }
    }

    /// Adds numbers of one row that follow each other.
    fn segment(&mut self, row: u64, from: u64, numbers: &[f64]) {
        let y = pixel(&self.rows, row);
        let (mut x, mut rest, mut at) = (pixel(&self.columns, from), numbers, from);
        while !rest.is_empty() && x + 1 < self.columns.len() {
            let here = usize::try_from(self.columns[x + 1] - at).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(here.min(rest.len()));
            let is_number = |n: &&f64| n.is_finite();
            let sum = now.iter().filter(is_number).sum();
            self.add(y, x, sum, now.iter().filter(is_number).count() as f64);
            at += now.len() as u64;
            (x, rest) = (x + 1, later);
        }
    }

    /// Adds one number at all places of some rows and columns.
    fn block(&mut self, rows: Range<u64>, columns: Range<u64>, number: f64) {
        let shared = |bounds: &[u64], at: usize, range: &Range<u64>| {
            let (start, end) = (bounds[at].max(range.start), bounds[at + 1].min(range.end));
            end.saturating_sub(start) as f64
        };
        let (width, height) = self.size();
        for y in 0..height {
            let tall = shared(&self.rows, y, &rows);
            for x in (0..width).filter(|_| tall > 0.0) {
                let count = tall * shared(&self.columns, x, &columns);
                self.add(y, x, number * count, count);
            }
        }
    }

    /// Returns the means of the pixels, scaled to 0..1, and the least and the greatest mean.
    fn scaled(&self) -> (Vec<Option<f64>>, Option<(f64, f64)>) {
        let mean = |&(sum, count): &(f64, f64)| (count > 0.0).then_some(sum / count);
        let means: Vec<Option<f64>> = self.pixels.iter().map(mean).collect();
        let known = || means.iter().flatten().copied();
        let least = known().fold(f64::INFINITY, f64::min);
        let most = known().fold(f64::NEG_INFINITY, f64::max);
        // Halves, as the span of floats is more than one.
        let span = most / 2.0 - least / 2.0;
        let scale = |mean: f64| match span > 0.0 {
            true => (mean / 2.0 - least / 2.0) / span,
            false => 0.5,
        };
        let scaled = means.iter().map(|mean| mean.map(scale)).collect();
        (scaled, (least <= most).then_some((least, most)))
    }

    /// Returns the least and the greatest mean.
    pub(super) fn range(&self) -> Option<(f64, f64)> {
        self.scaled().1
    }

    /// Returns the picture as red, green, blue and opacity of each pixel.
    fn rgba(&self) -> Vec<u8> {
        let (scaled, _) = self.scaled();
        let rgba = |value: &Option<f64>| match value.map(colour) {
            Some([r, g, b]) => [r, g, b, 255],
            None => [0; 4],
        };
        scaled.iter().flat_map(rgba).collect()
    }

    /// Writes the picture as a PNG file. The file gets its name when it is complete.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // Said here, the error names no temporary file.
        parent.metadata()?;
        let mut builder = Builder::new();
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        let mut file = builder
            .prefix(".npyfs-")
            .permissions(permissions)
            .tempfile_in(parent)?;
        io::Write::write_all(&mut file, &self.png().map_err(io::Error::other)?)?;
        file.persist(path)?;
        Ok(())
    }

    fn png(&self) -> Result<Vec<u8>, EncodingError> {
        let mut file = Vec::new();
        let (width, height) = self.size();
        let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
        let mut encoder = Encoder::new(&mut file, side(width), side(height));
        encoder.set_color(ColorType::Rgba);
        encoder.set_depth(BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgba())?;
        writer.finish()?;
        Ok(file)
    }

    /// Returns the picture in lines of characters, each two pixels high.
    pub(super) fn lines(&self, palette: Palette) -> String {
        let (scaled, _) = self.scaled();
        let (width, _) = self.size();
        let rows: Vec<&[Option<f64>]> = scaled.chunks(width.max(1)).collect();
        let mut text = String::new();
        for pair in rows.chunks(2) {
            let mut line = String::new();
            for (x, &upper) in pair[0].iter().enumerate() {
                let lower = pair.get(1).and_then(|row| row[x]);
                line.push_str(&match palette {
                    Palette::Shades => {
                        let known: Vec<f64> = [upper, lower].into_iter().flatten().collect();
                        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
                        shade(if known.is_empty() { 0.0 } else { mean }).to_string()
                    }
                    palette => cell(palette, upper, lower),
                });
            }
            text.push_str(line.trim_end());
            if palette != Palette::Shades {
                text.push_str(PLAIN);
            }
            text.push('\n');
        }
        text
    }
}

/// Returns a character whose upper and lower half have colours.
fn cell(palette: Palette, upper: Option<f64>, lower: Option<f64>) -> String {
    let code = |value: f64, ground: bool| palette.code(colour(value), ground);
    match (upper, lower) {
        (Some(upper), Some(lower)) => format!("{}{}▀", code(upper, false), code(lower, true)),
        (Some(upper), None) => format!("{PLAIN}{}▀", code(upper, false)),
        (None, Some(lower)) => format!("{PLAIN}{}▄", code(lower, false)),
        (None, None) => format!("{PLAIN} "),
    }
}

/// Returns the pixel in which an entry of an axis lies.
fn pixel(bounds: &[u64], at: u64) -> usize {
    bounds
        .partition_point(|&bound| bound <= at)
        .saturating_sub(1)
}

impl Visitor for Picture {
    fn elements(&mut self, first: u64, bytes: &[u8]) {
        let (rows, columns) = self.shape();
        let all = rows.saturating_mul(columns);
        if first >= all {
            return;
        }
        let left = usize::try_from(all - first).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(left.saturating_mul(self.size))];
        let numbers = self.numbers(bytes);
        let (mut at, mut rest) = (first, &numbers[..]);
        while !rest.is_empty() {
            let (row, from) = (at / columns, at % columns);
            let here = usize::try_from(columns - from).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(here.min(rest.len()));
            self.segment(row, from, now);
            at += now.len() as u64;
            rest = later;
        }
    }

    fn repeated(&mut self, places: Range<u64>, pattern: &[u8]) {
        let (_, columns) = self.shape();
        let places = places.start..places.end.min(self.places().end);
        let numbers = self.numbers(pattern);
        let known = || numbers.iter().copied().filter(|n| n.is_finite());
        let count = known().count();
        if places.is_empty() || count == 0 {
            return;
        }
        let number = known().sum::<f64>() / count as f64;
        let (first, last) = (places.start / columns, places.end / columns);
        let (from, to) = (places.start % columns, places.end % columns);
        if first == last {
            return self.block(first..first + 1, from..to, number);
        }
        self.block(first..first + 1, from..columns, number);
        self.block(first + 1..last, 0..columns, number);
        self.block(last..last + 1, 0..to, number);
    }
}

/// The colours that a terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Palette {
    /// Red, green and blue in 256 steps each.
    True,
    /// A cube of six steps each.
    Cube,
    /// None: characters that are more or less filled.
    Shades,
}

impl Palette {
    /// Returns the palette of the terminal, from what it says of itself.
    pub(super) fn of_terminal(has_colour: bool) -> Self {
        let says = std::env::var("COLORTERM").unwrap_or_default();
        match has_colour {
            false => Self::Shades,
            true if says == "truecolor" || says == "24bit" => Self::True,
            true => Self::Cube,
        }
    }

    /// Returns the escape sequence that sets the colour of characters, or with `ground` of their background.
    pub(super) fn code(self, colour: [u8; 3], ground: bool) -> String {
        let layer = if ground { 48 } else { 38 };
        match self {
            Self::True => {
                let [r, g, b] = colour;
                format!("\u{1b}[{layer};2;{r};{g};{b}m")
            }
            Self::Cube => {
                let number = colour
                    .iter()
                    .fold(0, |number, &part| number * 6 + step(part));
                format!("\u{1b}[{layer};5;{}m", 16 + number)
            }
            Self::Shades => String::new(),
        }
    }
}

/// Returns the step of the cube that is next to a colour's part.
fn step(part: u8) -> u32 {
    const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let distances = STEPS.iter().map(|&step| step.abs_diff(part));
    distances.zip(0..).min().map_or(0, |(_, number)| number)
}

/// Returns the character that stands for a value between 0 and 1 without colours.
fn shade(value: f64) -> char {
    match value {
        v if v < 0.2 => ' ',
        v if v < 0.4 => '░',
        v if v < 0.6 => '▒',
        v if v < 0.8 => '▓',
        _ => '█',
    }
}

/// Returns the colour of a value between 0 and 1: viridis, between nine of its colours.
fn colour(value: f64) -> [u8; 3] {
    const STOPS: [[u8; 3]; 9] = [
        [68, 1, 84],
        [71, 44, 122],
        [59, 81, 139],
        [44, 113, 142],
        [33, 144, 141],
        [39, 173, 129],
        [92, 200, 99],
        [170, 220, 50],
        [253, 231, 37],
    ];
    // The mean of numbers whose sum is no float any more may be anywhere.
    let place = if value.is_nan() {
        0.0
    } else {
        value.clamp(0.0, 1.0) * 8.0
    };
    let low = (place.floor() as usize).min(7);
    let share = place - low as f64;
    let between = |part: usize| {
        let [a, b] = [STOPS[low][part], STOPS[low + 1][part]].map(f64::from);
        (a + (b - a) * share).round() as u8
    };
    [between(0), between(1), between(2)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn picture(shape: &[u64], dtype: DType, room: (u64, u64)) -> Picture {
        let header = Header {
            dtype,
            shape: shape.to_vec(),
            fortran_order: false,
            start: 0,
            len: 0,
        };
        Picture::new(&header, room).unwrap()
    }

    fn means(picture: &Picture) -> Vec<f64> {
        picture
            .pixels
            .iter()
            .map(|(sum, count)| sum / count)
            .collect()
    }

    #[test]
    fn scales_are_equal_where_there_is_room() {
        assert_eq!(fit(28, 28, (48, 80)), (28, 28));
        assert_eq!(fit(1000, 2000, (48, 80)), (40, 80));
        assert_eq!(fit(2, 1_000_000, (48, 80)), (2, 80));
        assert_eq!(fit(u64::MAX >> 8, 10, (48, 80)), (48, 10));
    }

    #[test]
    fn halves_of_characters_are_pixels() {
        let mut small = picture(&[3, 2], DType::int(1), (48, 80));
        small.elements(0, &[0, 10, 0, 10, 0, 10]);
        assert_eq!(small.lines(Palette::Shades), " █\n █\n");
        assert_eq!(small.range(), Some((0.0, 10.0)));
        let lines = small.lines(Palette::True);
        assert_eq!(lines.matches('▀').count(), 4);
        assert!(lines.lines().all(|line| line.ends_with(PLAIN)));
        assert_eq!(small.rgba()[..8], [68, 1, 84, 255, 253, 231, 37, 255]);
    }

    #[test]
    fn columns_are_turned_into_rows() {
        let mut turned = picture(&[3, 2], DType::int(1), (48, 80));
        turned.elements(0, &[1, 2, 3, 4, 5, 6]);
        turned.turn();
        assert_eq!((turned.size(), turned.shape()), ((3, 2), (2, 3)));
        assert_eq!(means(&turned), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    }

    #[test]
    fn what_is_no_number_is_no_colour() {
        let mut holes = picture(&[1, 2], DType::scalar(Kind::Float, 8, Order::Big), (48, 80));
        holes.elements(0, &[1.0, f64::NAN].map(f64::to_be_bytes).concat());
        assert_eq!(holes.rgba()[4..], [0; 4]);
        assert_eq!(holes.lines(Palette::Shades), "▒\n");
    }

    proptest! {
        #[test]
        fn pixels_are_means(rows in 1..40_u64, columns in 1..40_u64, room in (1..20_u64, 1..20_u64), step in 1..50_usize) {
            let all: Vec<u8> = (0..rows * columns).map(|n| (n * 7 % 11) as u8).collect();
            let mut picture = picture(&[rows, columns], DType::int(1), room);
            for (number, part) in all.chunks(step).enumerate() {
                picture.elements((number * step) as u64, part);
            }
            let (width, _) = picture.size();
            for (at, mean) in means(&picture).into_iter().enumerate() {
                let (y, x) = (at / width, at % width);
                let own = (picture.rows[y]..picture.rows[y + 1]).flat_map(|row| {
                    (picture.columns[x]..picture.columns[x + 1]).map(move |column| row * columns + column)
                });
                let own: Vec<f64> = own.map(|at| f64::from(all[at as usize])).collect();
                prop_assert!((mean - own.iter().sum::<f64>() / own.len() as f64).abs() < 1e-9);
            }
        }

        #[test]
        fn what_repeats_is_drawn_as_if_it_were_there(rows in 1..20_u64, columns in 1..20_u64, cut in (0.0..1.0_f64, 0.0..1.0_f64)) {
            let all = rows * columns;
            let (a, b) = ((all as f64 * cut.0) as u64, (all as f64 * cut.1) as u64);
            let range = a.min(b)..a.max(b);
            let [mut one, mut other] = [0, 1].map(|_| picture(&[rows, columns], DType::int(1), (7, 9)));
            one.repeated(range.clone(), &[5]);
            other.elements(range.start, &vec![5; (range.end - range.start) as usize]);
            prop_assert_eq!(one.pixels, other.pixels);
        }
    }

    #[test]
    fn colours_go_from_dark_to_bright() {
        assert_eq!(colour(0.0), [68, 1, 84]);
        assert_eq!(colour(1.0), [253, 231, 37]);
        assert_eq!(colour(f64::NAN), [68, 1, 84]);
        assert_eq!(Palette::True.code([1, 2, 3], false), "\u{1b}[38;2;1;2;3m");
        assert_eq!(Palette::Cube.code([255, 0, 95], true), "\u{1b}[48;5;197m");
        assert_eq!([0.0, 0.5, 1.0].map(shade), [' ', '▒', '█']);
    }
}
