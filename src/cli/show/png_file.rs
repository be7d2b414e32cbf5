//! A picture as a PNG file.

use std::io;
use std::path::Path;

use png::{BitDepth, ColorType, Encoder, EncodingError};
use tempfile::Builder;

use super::picture::Picture;

/// Writes a picture; the file has its name when it is complete.
pub(super) fn write(path: &Path, picture: &Picture) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = Builder::new();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let mut file = builder
        .prefix(".npyfs-")
        .permissions(permissions)
        .tempfile_in(parent)?;
    io::Write::write_all(&mut file, &encode(picture).map_err(io::Error::other)?)?;
    file.persist(path)?;
    Ok(())
}

fn encode(picture: &Picture) -> Result<Vec<u8>, EncodingError> {
    let mut file = Vec::new();
    let (width, height) = picture.size();
    let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
    let mut encoder = Encoder::new(&mut file, side(width), side(height));
    encoder.set_color(ColorType::Rgba);
    encoder.set_depth(BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&picture.rgba())?;
    writer.finish()?;
    Ok(file)
}
