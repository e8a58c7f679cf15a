# Types are declared here: rankdeck.launch imports the version from __init__.py, so imports for types there
# would be circular.
from rankdeck.api.races import Raced as Raced
from rankdeck.api.races import race as race
from rankdeck.api.run_object import Run as Run
from rankdeck.api.runs import open_run as open_run
from rankdeck.api.runs import run as run
from rankdeck.api.runs import train as train
from rankdeck.observer.log import log as log

__version__: str
