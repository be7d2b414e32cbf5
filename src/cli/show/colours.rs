//! The colours of a picture, from dark blue over green to yellow, and their escape sequences.

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
pub(super) fn shade(value: f64) -> char {
    match value {
        v if v < 0.2 => ' ',
        v if v < 0.4 => '░',
        v if v < 0.6 => '▒',
        v if v < 0.8 => '▓',
        _ => '█',
    }
}

/// Returns the colour of a value between 0 and 1: viridis, between nine of its colours.
pub(super) fn colour(value: f64) -> [u8; 3] {
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
    use super::*;

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
