"""Results, progress and artifacts with real processes, as people and programs see them."""

from __future__ import annotations

from pathlib import Path

from support.installation import Installation


def test_a_job_says_how_far_it_is_and_leaves_a_result_and_files(up: Installation, tmp_path: Path) -> None:
    command = (
        'echo "0.5 half way" >> $JOBD_PROGRESS_FILE; echo \'{"loss": 0.25}\' > $JOBD_RESULT_FILE; '
        "mkdir $JOBD_ARTIFACTS_DIR/models; head -c 3000000 /dev/urandom > $JOBD_ARTIFACTS_DIR/models/best.bin; "
        "sha256sum < $JOBD_ARTIFACTS_DIR/models/best.bin; echo done > $JOBD_ARTIFACTS_DIR/a.txt"
    )
    job = str(up.good("submit", "--json", command).json()["id"])
    assert up.job("wait", job).code == 0

    known = up.good("status", "--json", job).json()
    assert known["result"] == {"loss": 0.25}
    assert known["progress"] == {"fraction": 0.5, "message": "half way"}
